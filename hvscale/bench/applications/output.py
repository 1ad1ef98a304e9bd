"""The tables of a program's measurement, for the terminal and the page."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from hvscale.bench.applications.document import (
    ApplicationDocument,
    ApplicationRow,
    ApplicationVariant,
    BandwidthRow,
    CountersRow,
)
from hvscale.core.units import human_bytes, human_number, human_seconds
from hvscale.report.tables import TableModel

NOT_SUPPORTED = "not supported"
NO_FLAGS = "(no flags)"

Row = TypeVar("Row", bound=ApplicationVariant)


def tables(document: ApplicationDocument) -> list[TableModel]:
    """All tables that are not empty."""
    shown = []
    if document.rows:
        shown.append(times(document))
    if any(row.overhead_percent is not None for row in document.rows):
        shown.append(overheads(document))
    if document.counters:
        shown.append(counters(document))
    if document.pings:
        shown += [pings(document), bandwidths(document)]
    return shown


def by_flags(rows: Sequence[Row], cells: Callable[[Row], list[str]]) -> dict[str, list[list[str]]]:
    """A group of rows for each build. The first cell has the placement and np."""
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        groups.setdefault(row.flags or NO_FLAGS, []).append([f"{row.placement} np {row.np}", *cells(row)])
    return groups


def sizes(document: ApplicationDocument) -> str:
    return ", ".join(f"{name} {value}" for name, value in document.sizes.items())


def times(document: ApplicationDocument) -> TableModel:
    """A row for each variant."""
    caption = [
        f"best flags on {best.placement}: {best.flags or NO_FLAGS} "
        f"({human_number(best.sum_of_median_seconds, 4)} s, sum of the medians over np)"
        for best in document.best_flags
    ]
    caption.append(
        f"seconds; outliers: beyond 1.5 interquartile ranges; speed-up: median(np {document.base_np}) / median"
    )
    return TableModel(
        title=f"{document.application}: {sizes(document)}",
        columns=["flags", "runs", "median", "quartiles", "outliers", "speed-up"],
        groups=by_flags(document.rows, time_cells),
        caption=caption,
    )


def time_cells(row: ApplicationRow) -> list[str]:
    return [
        str(row.runs),
        human_number(row.median_seconds, 4),
        f"{human_number(row.quartile_low_seconds, 4)} to {human_number(row.quartile_high_seconds, 4)}",
        ", ".join(human_number(value, 3) for value in row.outlier_seconds) or "-",
        human_number(row.speed_up),
    ]


def overheads(document: ApplicationDocument) -> TableModel:
    """The overhead of every placement but the first."""
    return TableModel(
        title=f"overhead over {document.placements[0]}: (median / median - 1) * 100",
        columns=["flags", "overhead %", "interval", ""],
        groups=by_flags([row for row in document.rows if row.overhead_percent is not None], overhead_cells),
        caption=[f"{document.confidence:.0%} bootstrap intervals over rounds, from six rounds on"],
    )


def overhead_cells(row: ApplicationRow) -> list[str]:
    """The overhead, its interval and the verdict."""
    percent, low, high = row.overhead_percent, row.overhead_percent_low, row.overhead_percent_high
    if percent is None:
        return ["-", "-", ""]
    if low is None or high is None:
        return [f"{percent:+.2f}", "-", "unknown: too few rounds"]
    verdict = "no difference" if low <= 0 <= high else "slower" if percent > 0 else "faster"
    return [f"{percent:+.2f}", f"{low:+.2f} to {high:+.2f}", verdict]


def counters(document: ApplicationDocument) -> TableModel:
    """The event counts, or why there are none."""
    problems = dict.fromkeys(f"{row.placement}: {row.problem}" for row in document.counters if row.problem is not None)
    return TableModel(
        title="event counts of one more run, over all ranks",
        columns=["flags", "clock", "switches", "cache misses", "instructions", "per cycle"],
        groups=by_flags(document.counters, counter_cells),
        caption=["clock: task clock; switches: context switches; per cycle: instructions", *problems],
    )


def counter_cells(row: CountersRow) -> list[str]:
    found = row.counters
    if found is None:
        return ["-"] * 5
    clock = found.task_clock_seconds
    whole = (found.context_switches, found.cache_misses, found.instructions)
    each = found.instructions_per_cycle
    return [
        NOT_SUPPORTED if clock is None else human_seconds(clock),
        *(NOT_SUPPORTED if value is None else f"{value:.0f}" for value in whole),
        NOT_SUPPORTED if each is None else f"{each:.2f}",
    ]


def pings(document: ApplicationDocument) -> TableModel:
    return TableModel(
        title="ping: round trip of one byte between rank 0 and every other rank",
        columns=["flags", "min", "median", "max"],
        groups=by_flags(
            document.pings,
            lambda row: [human_seconds(each) for each in (row.min_seconds, row.median_seconds, row.max_seconds)],
        ),
    )


def bandwidths(document: ApplicationDocument) -> TableModel:
    return TableModel(
        title="bandwidth per pair while all pairs send, 10^9 bytes/s",
        columns=["flags", "size", "median", "quartiles", "slowest"],
        groups=by_flags(document.bandwidth, bandwidth_cells),
    )


def bandwidth_cells(row: BandwidthRow) -> list[str]:
    return [
        human_bytes(row.bytes),
        human_number(row.median_gigabytes_per_second),
        f"{human_number(row.quartile_low_gigabytes_per_second)} to {human_number(row.quartile_high_gigabytes_per_second)}",
        human_number(row.slowest_gigabytes_per_second),
    ]
