"""A sample of a run as sentences and tables."""

import shlex
from pathlib import Path

from hvscale.core.run_folder import ranks_in_words
from hvscale.core.units import human_number, human_range, human_seconds, human_share
from hvscale.profiling.watch.document import LogLine, Watch, WatchRow
from hvscale.report.tables import TableModel

LATE_RANKS = 5
MOST_ROWS = 40
QUIET_SECONDS = 5.0  # without a call: said aloud
COMMAND_CHARACTERS = 200
RANKS_CHARACTERS = 60


def title(watch: Watch) -> str:
    """The run's name and how it is doing."""
    if watch.has_ended:
        return f"{Path(watch.run).name}: {watch.state} after {human_time(watch.elapsed_seconds)}"
    return f"{Path(watch.run).name}: {watch.state} for {human_time(watch.elapsed_seconds)}"


def facts(watch: Watch) -> str:
    """Ranks, library and command."""
    command = shlex.join(watch.command)
    if len(command) > COMMAND_CHARACTERS:
        command = f"{command[:COMMAND_CHARACTERS]} ..."
    return f"np {watch.np}, {watch.library}: {command}"


def sentences(watch: Watch) -> list[str]:
    """One line each: steps, exposed communication, and what is wrong or unknown."""
    lines = [steps_sentence(watch), exposed_sentence(watch)]
    quiet = watch.seconds_without_calls
    if quiet is not None and quiet >= QUIET_SECONDS:
        lines.append(f"no rank has completed a call for {human_time(quiet)}")
    if watch.ranks_recorded and watch.ranks_missing:
        lines.append(f"no profile of {_ranks(watch.ranks_missing)}: no MPI call yet, or the file is lost")
    lines += [f"no table: {reason}" for part, reason in watch.unavailable.items() if part == "rows"]
    if watch.ranks_recorded and "late_ranks" in watch.unavailable:
        lines.append(f"last ranks to arrive: unknown, because {watch.unavailable['late_ranks']}")
    return lines


def steps_sentence(watch: Watch) -> str:
    """The newest step, and the speed of the newest steps."""
    steps = watch.steps
    if steps is None:
        return f"steps: unknown, because {watch.unavailable['steps']}"
    of = f" of {steps.steps}" if steps.steps is not None else ""
    parts = [f"step {steps.step}{of}"]
    if steps.images_per_second is not None:
        parts.append(f"{human_number(steps.images_per_second)} images/s")
    if steps.step_seconds is not None:
        parts.append(f"{human_seconds(steps.step_seconds)} a step")
    if steps.loss is not None:
        parts.append(f"loss {human_number(steps.loss)}")
    return ", ".join(parts)


def exposed_sentence(watch: Watch) -> str:
    """The exposed communication, and how it is known."""
    exposed = watch.exposed_communication
    if exposed is None:
        return f"exposed communication: unknown, because {watch.unavailable['exposed_communication']}"
    low, high = human_share(exposed.share_at_least), human_share(exposed.share_at_most)
    between = low if low == high else f"{low} to {high}"
    if exposed.basis == "time":
        return f"exposed communication: at most {high} % of the time, which ranks spend in collectives"
    how = {
        "measured": f"measured by the program in {exposed.steps} steps",
        "calls": f"from the calls of the lowest rank in {exposed.steps} steps",
        "counters": f"from the counters of all ranks, over all {exposed.steps} steps so far",
    }[exposed.basis]
    return f"exposed communication: {between} % of a step, {how}"


def calls_table(watch: Watch, most_rows: int = MOST_ROWS) -> TableModel:
    """Rates and times by operation and size; of more than `most_rows`, those with the most time."""
    period = "the whole run" if watch.period == "run" else "the last"
    collectives, sends = watch.rows, watch.point_to_point
    chosen = sorted([*collectives, *sends], key=lambda row: (-row.share_of_time, -row.total_seconds))[:most_rows]
    kept = {id(row) for row in chosen}
    groups: dict[str, list[list[str]]] = {}
    for row in (*collectives, *sends):
        if id(row) in kept:
            groups.setdefault(row.operation, []).append(_cells(row))
    if collectives:
        groups["all collectives"] = [_total_cells(watch)]
    left_out = len(collectives) + len(sends) - len(chosen)
    share = "% step" if watch.steps is not None and watch.period == "interval" else "% time"
    return TableModel(
        title=f"communication in {period}{'' if watch.period == 'run' else ' ' + human_seconds(watch.period_seconds)}, "
        f"mean of {watch.ranks_recorded} {'rank' if watch.ranks_recorded == 1 else 'ranks'}",
        columns=["size", "calls/s", "GB/s", share, "p50", "p99", "busbw", "calls in all"],
        groups=groups,
        caption=[f"{left_out} rows with less time are not shown"] if left_out else [],
    )


def _cells(row: WatchRow) -> list[str]:
    return [
        human_range(row.bytes_min, row.bytes_max),
        human_number(row.calls_per_second) if row.calls_per_second else "0",
        human_bandwidth(row.gigabytes_per_second),
        human_share(row.share_of_time),
        *(human_seconds(seconds) if seconds is not None else "-" for seconds in (row.p50_seconds, row.p99_seconds)),
        "-" if row.busbw_gigabytes_per_second is None else human_bandwidth(row.busbw_gigabytes_per_second),
        str(row.total_calls),
    ]


def _total_cells(watch: Watch) -> list[str]:
    rows = watch.rows
    calls = sum(row.calls_per_second for row in rows)
    return [
        "all sizes",
        human_number(calls) if calls else "0",
        human_bandwidth(sum(row.gigabytes_per_second for row in rows)),
        human_share(watch.share_of_time or 0.0),
        *("-",) * 3,
        str(sum(row.total_calls for row in rows)),
    ]


def human_bandwidth(gigabytes_per_second: float) -> str:
    """For a table: 0, <0.001, 1.23."""
    if not gigabytes_per_second:
        return "0"
    return "<0.001" if gigabytes_per_second < 0.001 else human_number(gigabytes_per_second)


def late_table(watch: Watch) -> TableModel | None:
    """The ranks for which the others wait most; None if they are unknown."""
    late = watch.late_ranks
    if late is None:
        return None
    rows = [
        [
            str(rank.rank),
            str(rank.times_last),
            human_share(rank.share_last),
            human_seconds(rank.mean_seconds),
            human_seconds(rank.total_seconds),
        ]
        for rank in late.late_ranks[:LATE_RANKS]
    ]
    more = len(late.late_ranks) - LATE_RANKS
    return TableModel(
        title=f"last to arrive, of the newest {late.matched} collectives ({human_seconds(late.seconds)}); "
        f"{human_share(late.waiting_share)} % of their time is waiting",
        columns=["rank", "times", "%", "mean wait", "waiting caused"],
        groups={"": rows},
        caption=[f"{more} more ranks"] if more > 0 else [],
    )


def log_text(line: LogLine) -> str:
    """A line of output with the ranks that wrote it."""
    return f"[{_ranks(line.ranks).removeprefix('rank ') if line.ranks else 'launcher'}] {line.text}"


def _ranks(ranks: list[int]) -> str:
    words = ranks_in_words(ranks)
    return words if len(words) <= RANKS_CHARACTERS else f"{len(ranks)} ranks"


def summary_line(watch: Watch) -> str:
    """One line for a log: state, steps, communication and the last rank to arrive."""
    parts = [f"{watch.taken_at.astimezone():%H:%M:%S} {title(watch)}"]
    if watch.steps is not None:
        parts.append(steps_sentence(watch))
    if watch.ranks_recorded:
        calls = sum(row.calls_per_second for row in watch.rows)
        speed = sum(row.gigabytes_per_second for row in watch.rows)
        share = human_share(watch.share_of_time or 0.0)
        parts.append(
            f"{human_number(calls) if calls else 0} calls/s, {human_bandwidth(speed)} GB/s, {share} % in collectives"
        )
    late = watch.late_ranks.late_ranks if watch.late_ranks is not None else []
    if late:
        parts.append(f"last: rank {late[0].rank} ({human_share(late[0].share_last)} %)")
    quiet = watch.seconds_without_calls
    if quiet is not None and quiet >= QUIET_SECONDS:
        parts.append(f"no call for {human_time(quiet)}")
    return "; ".join(parts)


def human_time(seconds: float) -> str:
    """12 s, 3 min 5 s, 2 h 7 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
