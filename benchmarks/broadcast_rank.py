"""One rank of `broadcast.py`: times broadcasts by explicit choices, or the library's and the decision table's in turns."""

import argparse
import ctypes
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hvscale.bench.timed_library import CFunction, time_calls
from hvscale.comm_tuning.broadcast import broadcast

LEAST_SAMPLES, MOST_SAMPLES, SAMPLING_SECONDS = 3, 50, 1.0
HOPELESS = 1.5  # times the best so far: not measured again

communicator = MPI.COMM_WORLD


def slowest(seconds: float) -> float:
    found: float = communicator.allreduce(seconds, MPI.MAX)
    return found


def timed(buffer: Any, choice: dict[str, Any]) -> float:
    communicator.Barrier()
    began = time.perf_counter()
    broadcast(buffer, **choice)
    return slowest(time.perf_counter() - began)


def find(sizes: list[int], choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median seconds of each choice for each size."""
    found = []
    for size in sizes:
        buffer, best = np.zeros(size, np.uint8), float("inf")
        for choice in choices:
            timed(buffer, choice)
            seconds = [timed(buffer, choice)]
            samples = int(np.clip(SAMPLING_SECONDS / seconds[0], LEAST_SAMPLES, MOST_SAMPLES))
            if seconds[0] < HOPELESS * best or size < 1 << 20:
                seconds += [timed(buffer, choice) for _ in range(samples - 1)]
            best = min(best, float(np.median(seconds)))
            found.append({"bytes": size, "choice": choice, "seconds": float(np.median(seconds))})
    return found


def compare(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Seconds of the library's broadcast and of the one that stands in front of it, in turns, in each round; the results are checked."""
    preloaded, library = ctypes.CDLL(None).MPI_Bcast, ctypes.CDLL(MPI.__file__).PMPI_Bcast
    found = []
    world, byte = MPI._handleof(communicator), MPI._handleof(MPI.BYTE)
    meet = CFunction(address(ctypes.CDLL(MPI.__file__).PMPI_Barrier), (world,))
    for size in sizes:
        buffer = np.full(size, communicator.rank, np.uint8)
        calls = {
            name: CFunction(address(function), (buffer.ctypes.data, size, byte, 0, world))
            for name, function in (("library", library), ("table", preloaded))
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        once = max(sample(call, meet, 1) for call in calls.values())
        repeats = int(np.clip(SAMPLING_SECONDS / 5 / max(once, 1e-6), 1, 200))
        for number in range(rounds):
            for name in np.roll(list(calls), number).tolist():
                buffer[:] = 255 if communicator.rank else 7
                seconds[name].append(sample(calls[name], meet, repeats))
                if (buffer != 7).any():
                    raise SystemExit(f"{name}: wrong data at {size} bytes")
        found.append({"bytes": size, "seconds": seconds})
    return found


def address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def sample(call: CFunction, meet: CFunction, repeats: int) -> float:
    """Seconds of one broadcast, until the last rank has it, at the median over `repeats`."""
    status, seconds = time_calls([call], meet, repeats, 1, True)
    if status:
        raise MPI.Exception(status)
    return float(np.median(np.max(communicator.allgather(seconds), axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("request", type=Path)
    parser.add_argument("answer", type=Path)
    options = parser.parse_args()
    request = json.loads(options.request.read_text())
    found = find(**request["find"]) if "find" in request else compare(**request["compare"])
    if communicator.rank == 0:
        options.answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
