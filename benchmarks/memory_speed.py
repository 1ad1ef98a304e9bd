"""Measure how steady the speed of this machine's memory is.

Virtual machines on one processor share its third-level cache and its memory. One that looks idle
may therefore copy at half its speed, and benchmarks that move much memory then vary as much. All
cores copy at once, for a moment each time: inside the third-level cache, and outside it.

Example: `python benchmarks/memory_speed.py [--samples 45] [--pause 5]`
"""

import argparse
import multiprocessing
import time
from multiprocessing.synchronize import Barrier

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hvscale.core.host import describe_host
from hvscale.prediction.model.measured_costs import CACHE_BYTES

Bytes = NDArray[np.uint8]
COPY_BYTES = 4 << 20  # of one copy: a message of usual size
SAMPLE_SECONDS = 0.4
WAIT_SECONDS = 60  # for the other cores' processes
# Of a core's share of the third-level cache: what it copies from and to.
PLACES = {"inside the cache": 0.25, "outside": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=45, help="default: 45")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two samples; default: 5")
    options = parser.parse_args()
    if options.samples < 1 or options.pause < 0:
        parser.error("--samples must be at least 1, and --pause at least 0")
    host = describe_host()
    _, share = host.cache_bytes or CACHE_BYTES
    together = multiprocessing.Barrier(host.cores)
    with multiprocessing.Pool(host.cores, prepare, (together, share)) as pool:
        samples = []
        for _ in track(range(options.samples), "samples", console=Console(stderr=True)):
            samples.append(np.mean(pool.map(sample, range(host.cores), chunksize=1), axis=0))
            time.sleep(options.pause)
    table = Table(title=f"nanoseconds to copy a byte, {host.cores} cores at once, {options.samples} samples")
    for name in ("", "fastest", "median", "slowest"):
        table.add_column(name, justify="right" if name else "left")
    for place, times in zip(PLACES, np.transpose(samples), strict=True):
        table.add_row(place, *(f"{one:.3f}" for one in np.quantile(times, [0, 0.5, 1])))
    Console().print(table)


class Core:
    """What a process of the pool keeps: pairs of buffers for each place."""

    together: Barrier
    pairs: dict[str, list[tuple[Bytes, Bytes]]]


def prepare(together: Barrier, share: int) -> None:
    def buffers(part: float) -> list[tuple[Bytes, Bytes]]:
        count = max(1, round(part * share / (2 * COPY_BYTES)))
        return [(np.ones(COPY_BYTES, np.uint8), np.ones(COPY_BYTES, np.uint8)) for _ in range(count)]

    Core.together = together
    Core.pairs = {place: buffers(part) for place, part in PLACES.items()}


def sample(_: int) -> list[float]:
    """Nanoseconds a byte of this core, by place, while all cores copy."""
    Core.together.wait(WAIT_SECONDS)
    return [nanoseconds(pairs) for pairs in Core.pairs.values()]


def nanoseconds(pairs: list[tuple[Bytes, Bytes]]) -> float:
    began, copies = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < SAMPLE_SECONDS:
        for source, target in pairs:
            np.copyto(target, source)
        copies += len(pairs)
    return 1e9 * spent / copies / COPY_BYTES


if __name__ == "__main__":
    main()
