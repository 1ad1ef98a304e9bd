"""Run variants interleaved (A B C, B C A, ...) and compare them by ratios with 95 % intervals.

Interleaving spreads a slow phase of the machine over all variants.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

T = TypeVar("T")


def run_interleaved(variants: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run each variant once per round; each round starts with another variant."""
    results: dict[str, list[T]] = {name: [] for name in variants}
    for number in track(range(rounds), "rounds", console=Console(stderr=True)):
        for name in np.roll(list(variants), number).tolist():
            results[name].append(variants[name]())
    return results


def median_interval(values: Sequence[float], spec: str) -> str:
    """Format the 95 % bootstrap interval of the median; "-" for fewer than two values."""
    if len(values) < 2:
        return "-"
    low, high = stats.bootstrap((values,), np.median, random_state=0).confidence_interval
    return f"{low:{spec}} to {high:{spec}}"


def print_speeds(title: str, speeds: Mapping[str, Sequence[float]], baseline: str) -> None:
    """Print median images/s, and median ratios to the baseline with their intervals."""
    table = Table(title=title)
    for name in ("variant", "images/s", f"times {baseline}", "95 % interval"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for name, values in speeds.items():
        ratios = np.array(values) / np.array(speeds[baseline])
        interval = "-" if name == baseline else median_interval(ratios, ".2f")
        table.add_row(name, f"{np.median(values):.2f}", f"{np.median(ratios):.2f}", interval)
    Console().print(table)


@contextmanager
def in_own_processes(
    prepare: Mapping[str, Callable[[], Callable[[], float]]],
) -> Iterator[dict[str, Callable[[], float]]]:
    """Prepare each variant in its own process, because thread and memory settings are per process.

    The variants given back run one at a time: each call waits for its process.
    """
    spawn = multiprocessing.get_context("spawn")

    def request(pipe: Connection) -> float:
        pipe.send(True)
        return float(pipe.recv())

    with ExitStack() as stack:
        variants: dict[str, Callable[[], float]] = {}
        for name, prepare_variant in prepare.items():
            here, there = spawn.Pipe()
            process = spawn.Process(target=serve_variant, args=(prepare_variant, there), daemon=True)
            process.start()
            there.close()
            stack.callback(process.join)
            stack.callback(here.send, False)
            here.recv()  # prepared
            variants[name] = partial(request, here)
        yield variants


def serve_variant(prepare: Callable[[], Callable[[], float]], pipe: Connection) -> None:
    measure = prepare()
    pipe.send(0.0)
    while pipe.recv():
        pipe.send(measure())
