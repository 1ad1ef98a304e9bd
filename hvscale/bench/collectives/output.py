"""What `hvscale bench` shows on a terminal: a progress bar, and tables in the columns of nccl-tests
or OSU.
"""

from typing import TYPE_CHECKING

from rich.progress import MofNCompleteColumn

from hvscale.bench.collectives import elements
from hvscale.bench.collectives.document import BackendRun, BenchDocument, BenchRow, rows_to_compare
from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.bench.collectives.request import ALL_ROOTS, MeasuredSize
from hvscale.core.suggest import check_choice
from hvscale.core.units import human_bytes, human_seconds
from hvscale.report.progress import ProgressBar

if TYPE_CHECKING:
    from hvscale.bench.collectives.controller import BackendLaunch, CollectiveBench

LAYOUTS = ("nccl-tests", "osu")
NO_ROOT = "-1"  # nccl-tests prints this for a collective without a root


def tables(document: BenchDocument, layout: str) -> str:
    """A table for each measured back end, then the crossovers. Raises RequestError for an unknown
    layout.
    """
    check_layout(layout)
    make_table = osu_table if layout == "osu" else nccl_table
    parts = [make_table(document, entry) for entry in document.backends if rows_of(document, entry)]
    return "\n\n".join([*parts, *crossover_lines(document)])


def check_layout(layout: str) -> None:
    check_choice("--layout", layout, LAYOUTS)


def rows_of(document: BenchDocument, entry: BackendRun) -> list[BenchRow]:
    return [row for row in document.rows if row.backend == entry.name]


def heading(document: BenchDocument, entry: BackendRun) -> list[str]:
    knobs = "".join(f", {knob}={value}" for knob, value in entry.knobs.items())
    placement = document.launch.placement.name
    table = document.launch.collectives
    table_text = f", decision table {table}" if table else ""
    return [
        f"# hvscale bench {document.collective}, {entry.name}: {entry.library or 'library unknown'}",
        f"# np {document.np}, placement {placement}, {document.dtype} in {document.device} memory{knobs}{table_text}",
        f"# iterations {document.iterations}, warm-up {document.warmup}; time: mean of a call on the slowest rank",
    ]


def nccl_table(document: BenchDocument, entry: BackendRun) -> str:
    """A table with the columns of nccl-tests; N/A: the back end does not support this mode."""
    collective, dtype = COLLECTIVES.get(document.collective), elements.find_dtype(document.dtype)
    reduction = document.reduction or "none"
    root = ("all" if document.root == ALL_ROOTS else str(document.root)) if collective.rooted else NO_ROOT
    rows = rows_of(document, entry)
    by_size: dict[tuple[int, int], dict[bool, BenchRow]] = {}
    for row in rows:
        by_size.setdefault((row.bytes, row.count), {})[row.in_place] = row
    left = "#" + " " * 54
    lines = [
        *heading(document, entry),
        "#",
        f"{left}{'out-of-place':^35}{'in-place':^35}".rstrip(),
        header_line("size", "count", "type", "redop", "root", ["time", "algbw", "busbw", "#wrong"]),
        header_line("(B)", "(elements)", "", "", "", ["(us)", "(GB/s)", "(GB/s)", ""]),
    ]
    for (size, count), found in by_size.items():
        line = f" {size:>12} {count:>12} {dtype.nccl:>9} {reduction:>7} {root:>7}  "
        lines.append((line + "".join(result_cells(found.get(in_place)) for in_place in (False, True))).rstrip())
    wrong = sum(row.wrong or 0 for row in rows)
    verdict = f"{wrong} {'FAILED' if wrong else 'OK'}"
    checked = any(row.wrong is not None for row in rows)
    busbw = sum(row.busbw_gigabytes_per_second for row in rows) / len(rows)
    lines += [
        f"# wrong values: {verdict if checked else 'not checked'}",
        f"# average bus bandwidth: {busbw:.4g} GB/s",
    ]
    return "\n".join(lines)


def header_line(size: str, count: str, kind: str, reduction: str, root: str, result: list[str]) -> str:
    time, algbw, busbw, wrong = result
    half = f" {time:>9} {algbw:>7} {busbw:>7} {wrong:>7} "
    return f"#{size:>12} {count:>12} {kind:>9} {reduction:>7} {root:>7}  {half}{half}".rstrip()


def result_cells(row: BenchRow | None) -> str:
    if row is None:
        return f" {'N/A':>9} {'N/A':>7} {'N/A':>7} {'N/A':>7} "
    wrong = "N/A" if row.wrong is None else str(row.wrong)
    bandwidths = f"{row.algbw_gigabytes_per_second:>7.2f} {row.busbw_gigabytes_per_second:>7.2f}"
    return f" {microseconds(row.seconds):>9} {bandwidths} {wrong:>7} "


def microseconds(seconds: float) -> str:
    """The time in microseconds, at most nine characters."""
    us = seconds * 1e6
    return f"{us:.2f}" if us < 1e5 else f"{us:.0f}"


def osu_table(document: BenchDocument, entry: BackendRun) -> str:
    """A table with OSU's columns: average, minimum and maximum of the ranks' means. Out of place if
    the back end supports it.
    """
    collective = COLLECTIVES.get(document.collective)
    rows = rows_to_compare(rows_of(document, entry))
    itemsize = elements.find_dtype(document.dtype).bytes
    lines = [*heading(document, entry)]
    head = f"{'Avg Latency(us)':>18}{'Min Latency(us)':>18}{'Max Latency(us)':>18}{'Iterations':>14}"
    lines.append(f"{'# Size' if collective.has_data else '#':<10}{head}")
    for row in rows:
        size = row.count * itemsize if collective.osu_size == "block" else row.bytes
        ranks = (row.rank_seconds_mean, row.rank_seconds_min, row.rank_seconds_max)
        cells = "".join(f"{1e6 * seconds:>18.2f}" for seconds in ranks)
        lines.append(f"{size if collective.has_data else '':<10}{cells}{row.iterations:>14}")
    return "\n".join(lines)


def crossover_lines(document: BenchDocument) -> list[str]:
    lines = [
        f"# {one.faster_below} is faster below {human_bytes(one.bytes)}, {one.faster_above} above"
        for one in document.crossovers
    ]
    return ["\n".join(lines)] if lines else []


class SizesProgress(ProgressBar):
    """A progress bar over the sizes of all back ends, with the last measured time."""

    def __init__(self, bench: "CollectiveBench") -> None:
        super().__init__(sum(map(bench.expected_rows, bench.launches)), MofNCompleteColumn())
        self.name = ""

    def starting(self, launch: "BackendLaunch") -> None:
        self.name = launch.entry.name
        self.update(description=self.name)

    def measured(self, measured: MeasuredSize) -> None:
        duration = human_seconds(sum(measured.seconds) / len(measured.seconds))
        self.update(description=f"{self.name} {human_bytes(measured.bytes)}: {duration}", advance=1)
