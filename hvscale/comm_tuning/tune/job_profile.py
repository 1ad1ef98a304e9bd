"""The facts of a job that decide which knobs can matter, from its run with the defaults."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.bytes_per_step import known_or_inferred_edges
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.profiling.read.events import Events

WARMUP_STEPS = 3  # they send start-up messages: broadcasts of parameters, first negotiation of each tensor


@dataclass(frozen=True)
class OperationMessages:
    """The messages of one operation on one rank, without Horovod's negotiation.

    `largest`: in bytes. `share`: of the time of all messages.
    """

    calls: int
    largest: int
    share: float


@dataclass(frozen=True)
class JobProfile:
    """Facts of a job, from its profile.

    `ranks_per_node`: the most on any node. `cores`, `gpus`: of the machine that started the job.
    `source`: of the profile. `step_bytes`: bytes that a rank all-reduces in a step, None if steps
    are unknown. `messages`: by operation, without the warm-up steps if steps are known.
    """

    command: tuple[str, ...]
    np: int
    nodes: int
    ranks_per_node: int
    cores: int
    gpus: int
    flavour: str
    transport: str
    source: str
    horovod: bool
    step_bytes: int | None
    messages: dict[str, OperationMessages]


def job_profile(run: RunFolder) -> JobProfile:
    """The facts from a run. Raises RequestError if the run cannot be read."""
    record, recording = run.read(), read_recording(run)
    events = recording.events.of_rank(min(recording.ranks, default=0))
    chosen = ~events.bitwise
    edges, _ = known_or_inferred_edges(recording, read_step_log(run))
    step_bytes = None
    if edges is not None and len(edges) > WARMUP_STEPS + 1:
        chosen &= events.start_ns >= edges[WARMUP_STEPS]
        step_bytes = all_reduced(events, chosen & (events.start_ns < edges[-1])) // (len(edges) - 1 - WARMUP_STEPS)
    seconds = events.duration_ns[chosen].sum()
    messages = {}
    for code, name in enumerate(events.operations):
        of_operation = chosen & (events.operation == code)
        if of_operation.any():
            messages[name] = OperationMessages(
                calls=int(of_operation.sum()),
                largest=int(events.bytes[of_operation].max()),
                share=float(events.duration_ns[of_operation].sum() / max(seconds, 1)),
            )
    return from_record(
        record,
        source=recording.source,
        horovod=bool(np.any(events.bitwise)) or recording.source in ("horovod-timeline", "nccl"),
        step_bytes=step_bytes,
        messages=messages,
    )


def from_record(
    record: RunRecord, source: str, horovod: bool, step_bytes: int | None, messages: dict[str, OperationMessages]
) -> JobProfile:
    """The facts that a run's record has, with those that its communication has shown."""
    return JobProfile(
        command=tuple(record.command),
        np=record.np,
        nodes=len(record.nodes),
        ranks_per_node=max((len(node.ranks) for node in record.nodes), default=record.np),
        cores=record.host.cores,
        gpus=len(record.host.gpus),
        flavour=record.library.flavour,
        transport=record.library.transport,
        source=source,
        horovod=horovod,
        step_bytes=step_bytes,
        messages=messages,
    )


def all_reduced(events: Events, chosen: NDArray[np.bool_]) -> int:
    """Bytes of the all-reduces among the chosen messages."""
    code = events.operations.index("allreduce") if "allreduce" in events.operations else -1
    return int(events.bytes[chosen & (events.operation == code)].sum())
