"""Measure variants in turns, so that what a machine does meanwhile meets all of them, and say their
ratios.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats


def in_turns(variants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Images a second of each variant in each round; each round begins with another variant."""
    speeds: dict[str, list[float]] = {name: [] for name in variants}
    for number in track(range(rounds), "rounds"):
        for name in np.roll(list(variants), number).tolist():
            speeds[name].append(variants[name]())
    return speeds


def serve(prepare: Callable[[], Callable[[], float]], pipe: Connection) -> None:
    """The process of one variant: `prepare` gives what measures it."""
    measure = prepare()
    pipe.send(0.0)
    while pipe.recv():
        pipe.send(measure())


@contextmanager
def apart(prepared: dict[str, Callable[[], Callable[[], float]]]) -> Iterator[dict[str, Callable[[], float]]]:
    """Each variant in a process of its own, because settings of threads and memory hold for a whole
    one; one at a time is at work.
    """
    spawn = multiprocessing.get_context("spawn")

    def ask(pipe: Connection) -> float:
        pipe.send(True)
        return float(pipe.recv())

    with ExitStack() as ends:
        variants = {}
        for name, prepare in prepared.items():
            here, there = spawn.Pipe()
            process = spawn.Process(target=serve, args=(prepare, there), daemon=True)
            process.start()
            there.close()
            ends.callback(process.join)
            ends.callback(here.send, False)
            here.recv()
            variants[name] = partial(ask, here)
        yield variants


def show(title: str, speeds: dict[str, list[float]], against: str) -> None:
    """Median images/s, and the ratio to the variant `against` with its 95 % bootstrap interval over
    the rounds.
    """
    table = Table(title=title)
    for name in ("variant", "images/s", f"times {against}", "95 % interval"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for name, found in speeds.items():
        ratio = np.array(found) / np.array(speeds[against])
        interval = "-"
        if name != against:
            low, high = stats.bootstrap((ratio,), np.median, random_state=0).confidence_interval
            interval = f"{low:.2f} to {high:.2f}"
        table.add_row(name, f"{np.median(found):.2f}", f"{np.median(ratio):.2f}", interval)
    Console().print(table)
