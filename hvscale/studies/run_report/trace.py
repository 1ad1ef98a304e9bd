"""A run's messages as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from hvscale.core.errors import RequestError
from hvscale.core.numbers import choose_ranks, parse_rank_list
from hvscale.core.run_folder import RunFolder, ranks_in_words, write_atomically
from hvscale.core.units import human_bytes
from hvscale.profiling.compare import ProfiledRun, read_profiled_run
from hvscale.profiling.read.passes import latest

LAST = 500_000  # messages in a trace: 80 MB, which Perfetto loads in some seconds
CHUNK = 10_000


def write_trace(run: RunFolder, path: Path, ranks: str | None = None) -> str | None:
    """Write the trace of the last messages of `ranks`, such as 0,7,32-39 (None: all). Return a
    warning if there are more than LAST messages. Other ranks are not read.

    Raises RequestError if the run cannot be read, `ranks` is invalid or `path` cannot be written.
    """
    recorded = read_profiled_run(run, ranks=None if ranks is None else parse_rank_list(ranks))
    return trace_profiled_run(recorded, path, LAST, choose_ranks(ranks, recorded.recording.recorded))


def trace_profiled_run(
    run: ProfiledRun, path: Path, last: int = LAST, ranks: Sequence[int] | None = None
) -> str | None:
    """As `write_trace`, for a run that was already read.

    One process for each rank, with a row for each thread that made calls, and a row for the steps
    of rank 0 if they are known. Times are microseconds since the first message. `ranks` None: all.
    """
    chosen = run.recording.ranks if ranks is None else list(ranks)
    times = np.concatenate([part.times() for part in run.recording.events.parts if part.rank in chosen])
    messages = int(times[:, 0].sum())
    if not messages:
        raise RequestError(f"{run.path} has no message of {ranks_in_words(chosen)}")
    origin_ns = int(times[:, 1].min())
    try:
        write_atomically(path, lambda stream: _write(run, stream, chosen, origin_ns, last))
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
    left_out = messages - last
    return f"{path} contains only the last {last} messages, not the {left_out} before them" if left_out > 0 else None


def _write(run: ProfiledRun, stream: IO[bytes], ranks: list[int], origin_ns: int, last: int) -> None:
    about = {"run": run.path, "command": run.record.command, "start_seconds_since_1970": origin_ns / 1e9}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
    stream.write(f'{head[:-1]}, "traceEvents": [\n'.encode())
    first = True
    for text in _events(run, ranks, origin_ns, last):
        stream.write(text.encode() if first else b",\n" + text.encode())
        first = False
    stream.write(b"\n]}\n")


def _events(run: ProfiledRun, ranks: list[int], origin_ns: int, last: int) -> Iterator[str]:
    """JSON objects, some of them several joined by commas."""
    events = latest(run.recording.events, last, ranks)
    hosts = {end.rank: end.host for end in run.record.ranks}
    for rank in ranks:
        name = f"rank {rank} ({hosts[rank]})" if rank in hosts else f"rank {rank}"
        yield json.dumps({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        yield json.dumps({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    if run.edges_ns is not None:
        yield from _steps(run, min(ranks), origin_ns, int(events.start_ns[0]))
    names = [json.dumps(name) for name in events.operations]
    for begin in range(0, len(events), CHUNK):
        chunk = slice(begin, begin + CHUNK)
        columns = (
            events.operation[chunk],
            events.rank[chunk],
            events.thread[chunk],
            (events.start_ns[chunk] - origin_ns) / 1000,
            events.duration_ns[chunk] / 1000,
            events.bytes[chunk],
            events.communicator_size[chunk],
            events.bitwise[chunk],
        )
        yield ",\n".join(
            f'{{"ph":"X","cat":"{"coordination" if bitwise else "data"}","name":{names[operation]},"pid":{rank},"tid":{thread},'
            f'"ts":{start:.3f},"dur":{duration:.3f},"args":{{"bytes":{size},"size":"{human_bytes(size)}","ranks":{ranks}}}}}'
            for operation, rank, thread, start, duration, size, ranks, bitwise in zip(
                *(column.tolist() for column in columns), strict=True
            )
        )


def _steps(run: ProfiledRun, rank: int, origin_ns: int, from_ns: int) -> Iterator[str]:
    thread = 2**31 - 1  # no kernel gives this number to a thread
    name = "steps, inferred" if run.inferred_steps else "steps"
    yield json.dumps({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": name}})
    edges = run.edges_ns.tolist() if run.edges_ns is not None else []
    for number, (start, end) in enumerate(pairwise(edges), 1):
        if end >= from_ns:
            place = {"pid": rank, "tid": thread, "ts": (start - origin_ns) / 1000, "dur": (end - start) / 1000}
            yield json.dumps({"ph": "X", "cat": "step", "name": f"step {number}", **place})
