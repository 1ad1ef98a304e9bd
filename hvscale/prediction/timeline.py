"""One step as it was recorded, and one as the model predicts it, both from the last result of the
step before.
"""

import numpy as np

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.prediction.document import StepTimeline, TimedMessage
from hvscale.prediction.model.horovod_loop import Simulation
from hvscale.profiling.compare import read_profiled_run
from hvscale.studies.document import ResultSource


def predicted_timeline(simulation: Simulation, np_: int, source: ResultSource) -> StepTimeline:
    """The typical simulated step."""
    line = simulation.timeline
    return StepTimeline(
        np=np_,
        source=source,
        step_seconds=float(simulation.step[0, simulation.typical_step]),
        ready_seconds=line.ready.tolist(),
        messages=[
            TimedMessage(start_seconds=start, end_seconds=end, bytes=int(size), tensors=tensors)
            for start, end, size, tensors in line.messages
        ],
        agreement_seconds=line.agreements,
    )


def measured_timeline(run: RunFolder, source: ResultSource) -> StepTimeline | None:
    """The step of median length of the lowest rank; None if the run has no steps or messages."""
    try:
        profiled = read_profiled_run(run)
    except RequestError:
        return None
    edges = profiled.edges_ns
    if edges is None or len(edges) < 4:
        return None
    events = profiled.recording.events.of_rank(min(profiled.recording.ranks))
    own = events.communicator_size == profiled.record.np
    own &= np.array(["allreduce" in name for name in events.operations])[events.operation]
    order = np.flatnonzero(own)[np.argsort(events.start_ns[own], kind="stable")]
    start = events.start_ns[order]
    end, sizes, bitwise = start + events.duration_ns[order], events.bytes[order], events.bitwise[order]
    # A step mark follows the last result: the step ends with the last message before it.
    last = np.searchsorted(start[~bitwise], edges) - 1
    if (last < 0).any():
        last = last[last >= 0]
    results = end[~bitwise][np.unique(last)]
    if len(results) < 3:
        return None
    lengths = np.diff(results)
    number = int(np.argsort(lengths)[len(lengths) // 2])
    begin, stop = int(results[number]), int(results[number + 1])
    inside = (start >= begin) & (start < stop)
    # Agreements that nothing follows are the loop's idle cycles.
    useful = inside & bitwise & np.append(~bitwise[1:], False)
    return StepTimeline(
        np=profiled.record.np,
        source=source,
        step_seconds=(stop - begin) / 1e9,
        ready_seconds=[],
        messages=[
            TimedMessage(
                start_seconds=(int(a) - begin) / 1e9, end_seconds=(int(b) - begin) / 1e9, bytes=int(size), tensors=0
            )
            for a, b, size in zip(
                start[inside & ~bitwise], end[inside & ~bitwise], sizes[inside & ~bitwise], strict=True
            )
        ],
        agreement_seconds=[
            ((int(a) - begin) / 1e9, (int(b) - begin) / 1e9) for a, b in zip(start[useful], end[useful], strict=True)
        ],
    )
