"""How often the steps of recorded runs are found from their messages alone.

Each run needs a recording, and steps.jsonl, whose number of steps is compared with what is found.
If the program marked its steps too, the ends that are found are compared with the marks. With
--calls, the search in one rank's calls of random sizes and times is timed. Example:
`python benchmarks/bytes_per_step.py FOLDER --calls 1048576`, with all runs below FOLDER.
"""

import argparse
import resource
import time
from collections import Counter
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.bytes_per_step import find_bytes_per_step, find_step_edges
from hvscale.profiling.analyze.steps import LoggedSteps, gradient_messages, read_step_log, step_edges
from hvscale.profiling.read.events import Events, Recording

TOLERANCE = 0.02  # a job sends other messages before its first step
MESSAGES = 10  # in each step of a synthetic rank


def ratio(recording: Recording, log: LoggedSteps) -> float | None:
    """The bytes found over a step's by steps.jsonl; 0 if none are found, None without messages."""
    sent = int(gradient_messages(recording)[1].sum())
    return (find_bytes_per_step(recording)[0] or 0) * len(log.seconds) / sent if sent else None


def kind_of(value: float) -> str:
    if value == 0:
        return "nothing found"
    if abs(value - 1) < TOLERANCE:
        return "right"
    return "several steps taken for one" if abs(value - round(value)) < TOLERANCE else "wrong"


def has_right_ends(recording: Recording) -> bool | None:
    """Whether the ends found and the marks lie between the same messages; None without marks."""
    marks, found = step_edges(recording, None), find_step_edges(recording)
    if marks is None or found is None:
        return None if marks is None else False
    ends = gradient_messages(recording)[0]
    marked, inferred = np.searchsorted(ends, marks), np.searchsorted(ends, found, "right")
    # The first steps may be found later, and only the last step found has an end without a mark.
    return np.array_equal(marked[marked >= inferred[0]], inferred[inferred <= marked[-1]])


def synthetic_rank(calls: int) -> Recording:
    """One rank's all-reduces: in each step MESSAGES of the same sizes, after a long pause."""
    random = np.random.default_rng(0)
    steps = calls // MESSAGES
    count = steps * MESSAGES
    pauses = random.integers(1, 5, (steps, MESSAGES)) * 100_000
    pauses[:, 0] += 10**7
    events = Events(
        operations=("allreduce",),
        rank=np.zeros(count, np.int32),
        operation=np.zeros(count, np.uint8),
        bytes=np.tile(random.integers(1, 1 << 24, MESSAGES), steps),
        start_ns=np.cumsum(pauses.ravel()),
        duration_ns=np.full(count, 10_000),
        communicator_size=np.full(count, 2, np.int32),
        bitwise=np.zeros(count, np.bool_),
        thread=np.zeros(count, np.int64),
    )
    return Recording("hvprof", events, 1, [0])


def time_search(calls: int) -> str:
    """What finding the steps of a synthetic rank takes."""
    recording = synthetic_rank(calls)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    edges = find_step_edges(recording)
    seconds, after = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = 0 if edges is None else len(edges)
    return f"{calls} calls: {found} ends of steps in {seconds:.2f} s of a core and {(after - before) / 1024:.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calls", type=int, help="of one rank, in which steps are searched: time that first")
    options = parser.parse_args()
    if options.calls is not None:
        Console().print(time_search(options.calls))
    found: Counter[str] = Counter()
    ends: Counter[bool] = Counter()
    start = time.process_time()
    for folder in track(sorted(options.folder.rglob("hvprof")), "runs"):
        run = RunFolder(folder.parent)
        try:
            recording, log = read_recording(run), read_step_log(run)
        except RequestError:
            continue
        value = ratio(recording, log) if log is not None else None
        if value is None:
            continue
        found[kind_of(value)] += 1
        right = has_right_ends(recording)
        if right is not None:
            ends[right] += 1
    if not found:
        parser.error(f"no run with a recording and steps.jsonl below {options.folder}")
    seconds = (time.process_time() - start) / found.total()
    for kind, runs in found.most_common():
        Console().print(f"{kind}: {runs} of {found.total()} runs")
    Console().print(f"ends of marked steps found: in {ends[True]} of {ends.total()} runs")
    Console().print(f"{seconds:.2f} s of a core for each run, reading included")


if __name__ == "__main__":
    main()
