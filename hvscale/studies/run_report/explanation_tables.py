"""What explains a breakdown, as lines and small tables for the terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hvscale.core.units import human_bytes, human_seconds, human_share
from hvscale.profiling.analyze.buffer_reuse import HitRate
from hvscale.profiling.analyze.explanation import ExplainedBreakdown
from hvscale.profiling.analyze.exposed import ExposedCommunication
from hvscale.profiling.analyze.horovod_phases import Fusion, HorovodPhases, OperationPhases
from hvscale.profiling.analyze.waiting import OperationWaiting, Waiting
from hvscale.report.tables import plain_table
from hvscale.studies.run_report.rank_tables import look_at_first_lines

LATE_RANKS = 8  # of possibly hundreds, those that cause most waiting


def explanation_tables(explanation: ExplainedBreakdown) -> Iterator[RenderableType]:
    """A table or line for each part that is known, in 80 columns."""
    waiting, phases = explanation.waiting, explanation.horovod_phases
    if waiting is not None:
        yield _heading("waiting for the last rank, and moving data")
        yield _waiting_table(waiting)
        yield _heading(f"last rank to arrive, of {matched_words(waiting)}; {clock_sentence(waiting)}")
        yield _late_ranks_table(waiting)
    yield from look_at_first_lines(explanation)
    if phases is not None:
        yield _heading("Horovod's activity on rank 0")
        yield _phases_table(phases)
        yield Text(f"{fusion_sentence(phases.fusion)}\n{tensors_sentence(phases.fusion)}")
    if explanation.exposed_communication is not None:
        yield Text("\nexposed communication: " + exposed_words(explanation.exposed_communication))
    if explanation.buffer_reuse is not None:
        yield Text("\n" + reuse_sentence(explanation.buffer_reuse))


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="italic")


def waiting_name(row: OperationWaiting) -> str:
    return f"{row.operation}, coordination" if row.bitwise else row.operation


def clock_sentence(found: Waiting) -> str:
    """The maximum difference of two ranks' clocks."""
    if found.clock_error_seconds is None:
        return "the ranks' clocks were not aligned"
    if not found.clock_error_seconds:
        return "the ranks read one clock"
    return f"the ranks' clocks agree to {human_seconds(found.clock_error_seconds)}"


def matched_words(found: Waiting) -> str:
    """The number of collectives whose last rank is known."""
    coordination = f", {found.coordination_collectives} of them coordination" if found.coordination_collectives else ""
    return f"{found.matched} collectives{coordination}"


def _waiting_table(found: Waiting) -> Table:
    result = plain_table(None, None, "operation", "calls", "waiting", "%", "moving data")
    for row in found.operations:
        total = row.waiting_seconds + row.transfer_seconds
        result.add_row(
            waiting_name(row),
            str(row.calls),
            human_seconds(row.waiting_seconds),
            human_share(row.waiting_seconds / total if total else 0),
            human_seconds(row.transfer_seconds),
        )
    return result


def _late_ranks_table(found: Waiting) -> Table:
    result = plain_table(None, None, "rank", "times", "%", "mean wait", "waiting caused")
    for row in found.late_ranks[:LATE_RANKS]:
        result.add_row(
            str(row.rank),
            str(row.times_last),
            human_share(row.share_last),
            human_seconds(row.mean_seconds),
            human_seconds(row.total_seconds),
        )
    if len(found.late_ranks) > LATE_RANKS:
        result.add_row(f"{len(found.late_ranks) - LATE_RANKS} more")
    return result


def _phases_table(found: HorovodPhases) -> Table:
    columns = ("operation", "messages", "negotiate", "queue", "copy in", "move", "copy out", "other")
    result = plain_table(None, None, *columns)
    for row in found.operations:
        result.add_row(
            row.operation,
            str(row.messages),
            *(human_seconds(seconds) if seconds else "-" for seconds in phase_seconds(row)),
        )
    return result


def phase_seconds(row: OperationPhases) -> tuple[float, ...]:
    """Seconds of each phase, in the order of `PHASES`."""
    return (
        row.negotiation_seconds,
        row.queueing_seconds,
        row.copy_in_seconds,
        row.communication_seconds,
        row.copy_out_seconds,
        row.other_seconds,
    )


def fusion_sentence(fusion: Fusion) -> str:
    """How full the fusion buffer was."""
    if fusion.fill_mean is None or fusion.fill_max is None or fusion.threshold_bytes is None:
        if not fusion.fused_messages:
            return "no tensors were fused"
        return f"{fusion.fused_messages} messages of fused tensors; the fill of the buffer is unknown"
    return (
        f"fusion buffer of {human_bytes(fusion.threshold_bytes)}: filled to {human_share(fusion.fill_mean)} % (mean), "
        f"{human_share(fusion.fill_max)} % (maximum)"
    )


def tensors_sentence(fusion: Fusion) -> str:
    """How many tensors were in a message."""
    bins = ", ".join(
        f"{limits.messages} of {limits.tensors_min}{'' if limits.tensors_min == limits.tensors_max else f'-{limits.tensors_max}'}"
        for limits in fusion.tensors_per_message
    )
    mean, maximum = fusion.tensors_per_message_mean, fusion.tensors_per_message_max
    return f"tensors per message: mean {mean:.3g}, maximum {maximum}; messages: {bins}"


def exposed_words(exposed: ExposedCommunication) -> str:
    """The exposed share of a step, and how it is known."""
    mean = human_between(exposed.mean_share_at_least, exposed.mean_share_at_most)
    median = "median unknown"
    if exposed.median_share_at_least is not None and exposed.median_share_at_most is not None:
        median = f"median {human_between(exposed.median_share_at_least, exposed.median_share_at_most)} %"
    if exposed.basis == "measured":
        why = "measured by the program"
    elif exposed.mean_share_at_least == exposed.mean_share_at_most:
        why = "all in blocking calls on the thread that marks steps"
    elif exposed.mean_share_at_least == 0:
        why = "computation may hide all of it"
    else:
        why = (
            "blocking calls on the thread that marks steps count in both bounds; other calls only in the upper one, because "
            "computation may hide them"
        )
    return (
        f"{mean} % of a step ({median}), over {exposed.step_count} steps of "
        f"{human_seconds(exposed.mean_step_seconds)}: {why}"
    )


def human_between(low: float, high: float) -> str:
    """A share between two bounds, in percent."""
    texts = human_share(low), human_share(high)
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def reuse_sentence(rates: list[HitRate]) -> str:
    """The hit rates of caches of several sizes."""
    capacities = ", ".join(str(rate.capacity_entries) for rate in rates)
    hits = ", ".join(human_share(rate.hit_rate or 0) for rate in rates)
    return (
        f"buffer reuse: a cache of {capacities} buffers on each rank would hit {hits} % of {rates[0].messages} messages"
    )
