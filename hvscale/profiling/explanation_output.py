"""An explanation for people: a few lines and small tables for the terminal, each only where there is something to say."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hvscale.profiling.buffer_reuse import HitRate
from hvscale.profiling.explanation import Explanation
from hvscale.profiling.exposed import ExposedCommunication
from hvscale.profiling.horovod_phases import Fusion, HorovodPhases, OperationPhases
from hvscale.profiling.output import human_bytes, human_seconds, human_share, plain_table
from hvscale.profiling.waiting import OperationWaiting, Waiting

LATE_RANKS = 8  # of possibly hundreds: those that cost most


def explanation_tables(explanation: Explanation) -> Iterator[RenderableType]:
    """What is known, in 80 columns; nothing where nothing is."""
    if explanation.waiting is not None:
        yield _waiting_table(explanation.waiting)
        yield _late_ranks_table(explanation.waiting)
    if explanation.horovod_phases is not None:
        yield _phases_table(explanation.horovod_phases)
    lines = []
    if explanation.exposed_communication is not None:
        lines.append(exposed_sentence(explanation.exposed_communication))
    if explanation.buffer_reuse is not None:
        lines.append(_reuse_sentence(explanation.buffer_reuse))
    if lines:
        yield Text("\n" + "\n".join(lines))


def waiting_name(row: OperationWaiting) -> str:
    return f"{row.operation}, agreement" if row.bitwise else row.operation


def clock_sentence(found: Waiting) -> str:
    """How far the clocks of two ranks may be apart."""
    if found.clock_error_seconds is None:
        return "the ranks' clocks were not compared"
    if not found.clock_error_seconds:
        return "the ranks read one clock"
    return f"the ranks' clocks agree to {human_seconds(found.clock_error_seconds)}"


def matched_words(found: Waiting) -> str:
    """How many collectives tell who came late."""
    agreements = f", {found.agreements} of them agreement" if found.agreements else ""
    return f"{found.matched} collectives{agreements}"


def _waiting_table(found: Waiting) -> Table:
    result = plain_table(
        "\nwaiting for the last rank, and moving data", None, "operation", "calls", "waiting", "%", "moving data"
    )
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
    others = len(found.late_ranks) - LATE_RANKS
    caption = f"of {matched_words(found)}; {clock_sentence(found)}"
    if others > 0:
        caption += f"; {others} more ranks were last at times"
    result = plain_table("\nwho came last", caption, "rank", "times", "%", "mean wait", "waiting caused")
    for row in found.late_ranks[:LATE_RANKS]:
        result.add_row(
            str(row.rank),
            str(row.times_last),
            human_share(row.share_last),
            human_seconds(row.mean_seconds),
            human_seconds(row.total_seconds),
        )
    return result


def _phases_table(found: HorovodPhases) -> Table:
    result = plain_table(
        "\nwhat Horovod did, on rank 0",
        f"{fusion_sentence(found.fusion)}\n{tensors_sentence(found.fusion)}",
        *("operation", "messages", "negotiate", "queue", "copy in", "move", "copy out", "other"),
    )
    for row in found.operations:
        result.add_row(
            row.operation,
            str(row.messages),
            *(human_seconds(seconds) if seconds else "-" for seconds in phase_seconds(row)),
        )
    return result


def phase_seconds(row: OperationPhases) -> tuple[float, ...]:
    """In the order in which a message goes through them."""
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
        return f"{fusion.fused_messages} messages of fused tensors; how full the buffer was is not known"
    return (
        f"fusion buffer of {human_bytes(fusion.threshold_bytes)}: filled to {human_share(fusion.fill_mean)} % (mean), "
        f"{human_share(fusion.fill_max)} % (most)"
    )


def tensors_sentence(fusion: Fusion) -> str:
    """How many tensors made a message."""
    bins = ", ".join(
        f"{limits.tensors_min}{'' if limits.tensors_min == limits.tensors_max else f'-{limits.tensors_max}'}: {limits.messages}"
        for limits in fusion.tensors_per_message
    )
    return (
        f"tensors per message: mean {fusion.tensors_per_message_mean:.3g}, most {fusion.tensors_per_message_max}"
        f" (messages of {bins})"
    )


def exposed_sentence(exposed: ExposedCommunication) -> str:
    """The share of a step, and what it rests on."""
    steps = f"{len(exposed.steps)} steps, {human_seconds(exposed.mean_step_seconds)} each"
    mean = human_between(exposed.mean_share_at_least, exposed.mean_share_at_most)
    median = human_between(exposed.median_share_at_least, exposed.median_share_at_most)
    if exposed.basis == "measured":
        why = "as the program measured it"
    elif mean == human_share(exposed.mean_share_at_least):
        why = "calls on the thread that marks steps"
    else:
        why = "the rest is calls of other threads, or that do not block: computing may hide them"
    return f"exposed communication: {mean} % of a step (median {median} %); {why}; {steps}"


def human_between(low: float, high: float) -> str:
    """A share that lies between two bounds, in percent."""
    texts = human_share(low), human_share(high)
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def _reuse_sentence(rates: list[HitRate]) -> str:
    capacities = ", ".join(str(rate.capacity_entries) for rate in rates)
    hits = ", ".join(human_share(rate.hit_rate or 0) for rate in rates)
    return (
        f"buffer reuse: a cache of {capacities} buffers on each rank would hit {hits} % of {rates[0].messages} messages"
    )
