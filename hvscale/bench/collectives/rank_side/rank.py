"""The program of each rank. Rank 0 writes the result of each size as soon as it is measured.

Started as `python -m hvscale.bench.collectives.rank_side.rank` with HVSCALE_RUN in the environment.
It never imports the controller.
"""

import gc
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
    MeasuredSize,
    Refused,
    RequestedSize,
    WrongElement,
    own_run_folder,
    results_path,
    samples_and_calls,
)
from hvscale.core.errors import EXIT_RANK_FAILED, HvscaleError, RequestError
from hvscale.core.statistics import summarise

MIN_SAMPLES = 5  # before --until-interval may stop a size


def main() -> None:
    gc.disable()  # no collection interrupts a measurement, or looks at PyTorch's modules while they load
    request = BenchRequest.load_own()
    backend = backends.find_backend(request.backend)
    try:
        engine = backend.open(request)
        hosts = engine.allgather(socket.gethostname())
        with open(results_path(own_run_folder()) if engine.rank == 0 else os.devnull, "w") as results:  # noqa: PTH123
            write(results, BenchStarted(library=engine.library, hosts=hosts))
            measure(engine, request, backend, hosts, results)
        engine.close()
        gc.freeze()  # Python collects once more when it ends
    except RequestError as error:
        # Several ranks may get here, and all write the same reason.
        with results_path(own_run_folder()).open("a") as results:
            write(results, Refused(reason=str(error)))
        abort(f"hvscale: {error}", error.exit_status)
    except HvscaleError as error:
        abort(f"hvscale: {error}", error.exit_status)
    except Exception:
        abort(traceback.format_exc(), EXIT_RANK_FAILED)


def abort(text: str, status: int) -> None:
    """Print the error and exit at once. A normal exit could deadlock in MPI."""
    print(text, file=sys.stderr, flush=True)
    os._exit(status)


def measure(engine: Engine, request: BenchRequest, backend: Backend, hosts: list[str], results: IO[str]) -> None:
    """Measure every size in all requested modes. Raises RequestError on all ranks if the buffers do
    not fit on some node.
    """
    collective, dtype = COLLECTIVES.get(request.collective), elements.find_dtype(request.dtype)
    largest = max(size.bytes for size in request.sizes)
    here = [rank for rank, host in enumerate(hosts) if host == socket.gethostname()]
    raise_on_all_ranks(engine, memory_problem(engine, request, backend, largest, here))
    if request.first_worker is None:
        modes, blocks = backends.in_place_modes(backend, request.collective, request.in_place), (1, 1)
    else:
        modes = [server_in_place(request.collective, engine.rank)]
        blocks = server_blocks(request.collective, request.path, engine.rank, engine.np)
    send, receive = (engine.buffer(request.device, largest * number) for number in blocks)
    for size in request.sizes:
        for in_place in modes:
            operands = Operands(
                collective, dtype, size.count, engine.rank, engine.np, max(request.root, 0), in_place, send, receive
            )
            measured = measure_size(engine, operands, size, request)
            write(results, measured)


def memory_problem(engine: Engine, request: BenchRequest, backend: Backend, largest: int, here: list[int]) -> str:
    """Why the buffers of the ranks `here` do not fit on this node, or ""."""
    available, where = available_bytes(), f"the memory of {socket.gethostname()}"
    try:
        if request.first_worker is None:
            check_fits(largest, backend.buffers, len(here), available, where)
        else:
            check_memory(request.collective, request.path, backend, here, engine.np, largest, available, where)
    except RequestError as error:
        return str(error)
    return ""


def raise_on_all_ranks(engine: Engine, problem: str) -> None:
    """Raises RequestError on all ranks if any has a problem, so that none waits for another.

    `problem`: of this rank, or "".
    """
    reasons = [reason for reason in engine.allgather(problem) if reason]
    if reasons:
        raise RequestError(reasons[0])


def measure_size(engine: Engine, operands: Operands, size: RequestedSize, request: BenchRequest) -> MeasuredSize:
    """Make warm-up calls, timed calls, and one more call to check its result."""
    sync_each_call = operands.collective.rooted
    operands.prepare()
    checked_call = engine.prepare_call(operands)
    timed_call = checked_call
    if request.root == ALL_ROOTS:
        timed_call = engine.prepare_call(replace(operands, root=ALL_ROOTS))
    if size.warmup:
        timed_call.time(1, size.warmup, sync_each_call)
    samples, calls = samples_and_calls(size.iterations)
    seconds: list[float] = []
    seconds_by_rank: list[list[float]] = [[] for _ in range(engine.np)]
    while len(seconds) < samples:
        batch = samples if request.until_interval is None else min(MIN_SAMPLES, samples - len(seconds))
        new_by_rank = engine.allgather(timed_call.time(batch, calls, sync_each_call))
        for known, new in zip(seconds_by_rank, new_by_rank, strict=True):
            known += new
        # The slowest rank of each sample counts: a job continues only when all ranks are done.
        seconds += np.max(new_by_rank, axis=0).tolist()
        if request.until_interval is not None:
            half_width = summarise(seconds).half_width_percent
            if engine.broadcast_from_root(half_width is not None and half_width <= request.until_interval):
                break
    wrong, first_wrong = None, None
    if request.check and operands.collective.has_data:
        wrong, first_wrong = check(engine, operands, checked_call)
    return MeasuredSize(
        bytes=size.bytes,
        count=size.count,
        in_place=operands.in_place,
        calls_per_sample=calls,
        seconds=seconds,
        rank_seconds=[float(np.mean(known)) for known in seconds_by_rank],
        wrong=wrong,
        first_wrong=first_wrong,
    )


def check(engine: Engine, operands: Operands, call: PreparedCall) -> tuple[int, WrongElement | None]:
    """Make one call with fresh operands; returns the number of wrong elements over all ranks and
    the first of them.
    """
    operands.prepare()
    found = engine.allgather(operands.check(call.call_once()))
    first = next((first_wrong for _, first_wrong in found if first_wrong is not None), None)
    return sum(wrong for wrong, _ in found), first


def write(results: IO[str], line: BenchStarted | Refused | MeasuredSize) -> None:
    """Write and flush a line, so that a killed job keeps its results so far."""
    results.write(line.model_dump_json() + "\n")
    results.flush()


if __name__ == "__main__":
    main()
