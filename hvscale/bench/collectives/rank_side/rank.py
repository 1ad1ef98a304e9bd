"""The part of a benchmark that runs inside every rank. Rank 0 writes the result of each size as
soon as it is known.

Started as `python -m hvscale.bench.collectives.rank_side.rank` with HVSCALE_RUN in the environment.
Never imports the controller.
"""

import os
import socket
import sys
import traceback
from dataclasses import replace
from typing import IO

import numpy as np

from hvscale.bench.collectives import backends, elements
from hvscale.bench.collectives.backends import Backend
from hvscale.bench.collectives.memory import available_bytes, check_fits, check_memory, server_blocks, server_in_place
from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.bench.collectives.rank_side.engine import Engine, Operands, PreparedCall
from hvscale.bench.collectives.request import (
    ALL_ROOTS,
    BenchRequest,
    BenchStarted,
    FirstWrong,
    Measured,
    Refused,
    Size,
    results_path,
    run_of_this_rank,
    samples_and_calls,
)
from hvscale.core.errors import EXIT_RANK_FAILED, HvscaleError, RequestError
from hvscale.core.statistics import summarise

MIN_SAMPLES = 5  # before an interval counts as narrow


def main() -> None:
    request = BenchRequest.of_this_rank()
    backend = backends.find_backend(request.backend)
    try:
        engine = backend.open(request)
        hosts = engine.allgather(socket.gethostname())
        with open(results_path(run_of_this_rank()) if engine.rank == 0 else os.devnull, "w") as results:  # noqa: PTH123
            write(results, BenchStarted(library=engine.library, hosts=hosts))
            measure(engine, request, backend, hosts, results)
        engine.close()
    except RequestError as error:
        # Several ranks may come here: all write the same reason.
        with results_path(run_of_this_rank()).open("a") as results:
            write(results, Refused(reason=str(error)))
        give_up(f"hvscale: {error}", error.exit_status)
    except HvscaleError as error:
        give_up(f"hvscale: {error}", error.exit_status)
    except Exception:
        give_up(traceback.format_exc(), EXIT_RANK_FAILED)


def give_up(text: str, status: int) -> None:
    """Exit at once: a normal exit would wait in MPI for ranks that wait for this one."""
    print(text, file=sys.stderr, flush=True)
    os._exit(status)


def measure(engine: Engine, request: BenchRequest, backend: Backend, hosts: list[str], results: IO[str]) -> None:
    """Measure every size, out of place and in place. Raises RequestError on every rank where the
    buffers of a node do not fit.
    """
    collective, dtype = COLLECTIVES.get(request.collective), elements.find_dtype(request.dtype)
    largest = max(size.bytes for size in request.sizes)
    here = [rank for rank, host in enumerate(hosts) if host == socket.gethostname()]
    refuse_together(engine, memory_problem(engine, request, backend, largest, here))
    if request.first_worker is None:
        in_places, blocks = backends.places(backend, request.collective, request.places), (1, 1)
    else:
        in_places = [server_in_place(request.collective, engine.rank)]
        blocks = server_blocks(request.collective, request.path, engine.rank, engine.np)
    send, receive = (engine.buffer(request.device, largest * number) for number in blocks)
    for size in request.sizes:
        for is_in_place in in_places:
            operands = Operands(
                collective, dtype, size.count, engine.rank, engine.np, max(request.root, 0), is_in_place, send, receive
            )
            measured = measure_size(engine, operands, size, request)
            write(results, measured)


def memory_problem(engine: Engine, request: BenchRequest, backend: Backend, largest: int, here: list[int]) -> str:
    """Why the buffers of the ranks `here` do not fit on this node; empty if they do."""
    available, where = available_bytes(), f"the memory of {socket.gethostname()}"
    try:
        if request.first_worker is None:
            check_fits(largest, backend.buffers, len(here), available, where)
        else:
            check_memory(request.collective, request.path, backend, here, engine.np, largest, available, where)
    except RequestError as error:
        return str(error)
    return ""


def refuse_together(engine: Engine, why: str) -> None:
    """Raises RequestError on all ranks with the first reason of any rank, so that none waits for
    another.
    """
    reasons = [reason for reason in engine.allgather(why) if reason]
    if reasons:
        raise RequestError(reasons[0])


def measure_size(engine: Engine, operands: Operands, size: Size, request: BenchRequest) -> Measured:
    """Make warm-up calls, timed samples, and one more call whose result is checked."""
    sync_each_call = operands.collective.rooted
    operands.prepare()
    work = engine.prepare_call(operands)
    timed = engine.prepare_call(replace(operands, root=ALL_ROOTS)) if request.root == ALL_ROOTS else work
    if size.warmup:
        timed.time(1, size.warmup, sync_each_call)
    samples, calls = samples_and_calls(size.iterations)
    seconds: list[float] = []
    own: list[list[float]] = [[] for _ in range(engine.np)]
    while len(seconds) < samples:
        batch = samples if request.until_interval is None else min(MIN_SAMPLES, samples - len(seconds))
        of_ranks = engine.allgather(timed.time(batch, calls, sync_each_call))
        for found, new in zip(own, of_ranks, strict=True):
            found += new
        # The slowest rank of each sample, because a job continues only when all ranks have what
        # they need.
        seconds += np.max(of_ranks, axis=0).tolist()
        if request.until_interval is not None:
            width = summarise(seconds).half_width_percent
            if engine.broadcast_from_root(width is not None and width <= request.until_interval):
                break
    checked = request.check and operands.collective.has_data
    wrong, first_wrong = check(engine, operands, work) if checked else (None, None)
    return Measured(
        bytes=size.bytes,
        count=size.count,
        in_place=operands.in_place,
        calls_per_sample=calls,
        seconds=seconds,
        rank_seconds=[float(np.mean(found)) for found in own],
        wrong=wrong,
        first_wrong=first_wrong,
    )


def check(engine: Engine, operands: Operands, work: PreparedCall) -> tuple[int, FirstWrong | None]:
    """Check one call with fresh operands: the wrong elements over all ranks, and the first one."""
    operands.prepare()
    found = engine.allgather(operands.check(work.once()))
    first = next((first_wrong for _, first_wrong in found if first_wrong is not None), None)
    return sum(wrong for wrong, _ in found), first


def write(results: IO[str], line: BenchStarted | Refused | Measured) -> None:
    """Write and flush a line, so that a killed job leaves its results so far."""
    results.write(line.model_dump_json() + "\n")
    results.flush()


if __name__ == "__main__":
    main()
