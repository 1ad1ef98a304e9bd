"""The report's section on a job that was tuned while it trained."""

from dataclasses import dataclass

from hvscale.core.autotune_result import AutotuneResult, NextStart, read_autotune_result
from hvscale.core.run_folder import RunFolder
from hvscale.core.units import human_seconds
from hvscale.report.tables import TableModel


@dataclass(frozen=True)
class AutotuneView:
    """The sentences and the table of the section.

    `next_start`: what needs a fresh start, with a sentence on it and the command in `next_command`.
    """

    sentence: str
    cost: str
    table: TableModel | None
    next_start: str = ""
    next_command: str = ""


def autotune_view(run: RunFolder) -> AutotuneView | None:
    """The section of a run; None if it was not tuned. Raises ValueError for a damaged result."""
    result = read_autotune_result(run)
    if result is None:
        return None
    rows = [
        [words(one.settings), str(one.steps), f"{one.ratio:.2f}", "yes" if one.kept else "no"] for one in result.trials
    ]
    columns = ["settings", "steps", "step time / best before", "kept"]
    return AutotuneView(
        sentence(result),
        cost(result),
        TableModel(title="Candidates", columns=columns, groups={"": rows}) if rows else None,
        proposal(result, result.next_start) if result.next_start is not None else "",
        result.next_start.command if result.next_start is not None else "",
    )


def words(settings: dict[str, str]) -> str:
    return " ".join(f"{knob}={value}" for knob, value in settings.items()) or "the defaults"


def sentence(result: AutotuneResult) -> str:
    """What the tuning found."""
    gain = result.gain
    if result.unproven:
        return f"Nothing was proven: {result.reason}. The best settings so far: {words(result.unproven)}."
    if result.state != "tuned" or gain is None:
        return f"The defaults were kept: {result.reason}."
    interval = f" (95 % interval {gain.low:.2f} to {gain.high:.2f})" if gain.low is not None else ""
    again = "Remembered settings" if result.remembered else "New settings"
    return f"{again}: {words(result.settings)}. Throughput is {gain.mean:.2f} times that of the defaults{interval}."


def cost(result: AutotuneResult) -> str:
    """What the tuned phase cost."""
    if not result.steps:
        return ""
    lost = "lost" if result.lost_seconds >= 0 else "gained"
    return (
        f"{result.steps} steps and {result.switches} changes of settings, which {lost} "
        f"{human_seconds(abs(result.lost_seconds))} beside the same steps with the defaults."
    )


def proposal(result: AutotuneResult, found: NextStart) -> str:
    """What the next start of the job could try, and why."""
    knobs = "; ".join(f"{one.knob} ({one.reason})" for one in found.knobs)
    waiting = result.waiting[0].upper() + result.waiting[1:]
    return f"{waiting}. These knobs need a fresh start: {knobs}. This command tries them:"
