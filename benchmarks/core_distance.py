"""How far a virtual machine's cores are from each other while a benchmark runs.

The host may move them: at one moment they share a cache, at another they do not, whatever `lscpu`
says. Gloo's messages between ranks on different cores then take up to twice as long.

Alone, it samples a machine: `python benchmarks/core_distance.py [--seconds 60]`. It needs root, so
that other work does not hold up the samples, and a C compiler.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

Floats = NDArray[np.float64]
SOURCE = Path(__file__).with_suffix(".c")
PAUSE_SECONDS = 0.2
FAR_RATIO = 2.0  # times the nearest sample of two cores, from which on they are far from each other


class CoreDistance:
    """From its creation on: round trips of a cache line between the first core and each other one.

    They interrupt all work of a lower priority. Raises SystemExit if they cannot be taken, and
    OSError or CalledProcessError without a C compiler.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "core_distance")
            subprocess.run(["cc", "-O2", "-pthread", "-o", program, SOURCE], check=True)
            self.process = subprocess.Popen(
                ["chrt", "--rr", "2", program, str(PAUSE_SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            # Once it prints, its file may go.
            self.first = self.process.stdout.readline() if self.process.stdout else ""
        if not self.first and self.process.wait():
            raise SystemExit("the distance between cores cannot be sampled: start this as root")

    def stop(self) -> Floats:
        """End the samples, (samples, 3): seconds since 1970, the other core, nanoseconds.

        A machine with one core has none.
        """
        output, _ = self.process.communicate("\n")
        if self.process.returncode:
            raise SystemExit("the distance between cores could not be sampled to the end")
        fields = (line.split() for line in [self.first, *output.splitlines()] if line)
        return np.array([(float(one[0]), int(one[2]), float(one[3])) for one in fields]).reshape(-1, 3)


def are_far(samples: Floats, every: Floats) -> NDArray[np.bool_]:
    """Whether the two cores of each sample were far from each other.

    Compared with the nearest sample of the same two cores among `every`: on most machines some
    cores are always nearer than others.
    """
    nearest = np.full(int(max(samples[:, 1].max(initial=0), every[:, 1].max(initial=0))) + 1, np.inf)
    np.minimum.at(nearest, every[:, 1].astype(int), every[:, 2])
    far: NDArray[np.bool_] = samples[:, 2] > FAR_RATIO * nearest[samples[:, 1].astype(int)]
    return far


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    options = parser.parse_args()
    if options.seconds <= 0:
        parser.error("--seconds must be greater than 0")
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("there is one core: nothing to measure")
    distance = CoreDistance()
    for _ in track(range(round(10 * options.seconds)), "samples", console=Console(stderr=True)):
        time.sleep(0.1)
    found = distance.stop()
    table = Table(title=f"round trip of a cache line between cores, nanoseconds, {len(found)} samples")
    for name in ("nearest", "median", "farthest", "far, %"):
        table.add_column(name, justify="right")
    nearest, median, farthest = np.quantile(found[:, 2], [0, 0.5, 1])
    table.add_row(*(f"{one:.0f}" for one in (nearest, median, farthest, 100 * are_far(found, found).mean())))
    Console().print(table)


if __name__ == "__main__":
    main()
