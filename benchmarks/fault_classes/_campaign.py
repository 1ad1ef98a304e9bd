"""Runs tries, keeps a line for each in a file, and prints the table."""

import os
import random
import shutil
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from fault_classes import FAULTS, FaultClass
from fault_classes._originals import Originals
from fault_classes._try import LostError, Try
from hvscale.core.errors import RequestError
from hvscale.core.line_files import read_lines
from hvscale.report.progress import ProgressBar

RESULTS, ORIGINALS, TRIES = "results.jsonl", "originals", "tries"


class Result(BaseModel):
    """One try. `lost`: what went wrong; empty if it survived. `answers`: exit statuses."""

    model_config = ConfigDict(extra="forbid")

    name: str
    seed: int
    number: int
    disturbance: str
    answers: list[int]
    lost: str = ""
    seconds: float


class Campaign:
    """The tries of a seed in a folder; those that the folder already has are not repeated."""

    def __init__(self, folder: Path, seed: int, patience: float = 1.0) -> None:
        self.folder = folder.absolute()
        self.seed = seed
        self.patience = patience
        self.folder.mkdir(parents=True, exist_ok=True)
        self.originals = Originals(self.folder / ORIGINALS)
        self.results = self._load()
        self.lock = threading.Lock()
        self.stopped = threading.Event()

    def _load(self) -> list[Result]:
        path = self.folder / RESULTS
        if not path.exists():
            return []
        found = read_lines(path, Result.model_validate_json).values
        if any(result.seed != self.seed for result in found):
            raise RequestError(f"{path} holds tries of seed {found[0].seed}: give --seed {found[0].seed}")
        return found

    def attempt(self, name: str, fault: FaultClass, number: int) -> Result:
        """Run one try in a fresh folder, which stays if the try is lost."""
        folder = self.folder / TRIES / f"{name}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        one = Try(name, self.seed, number, folder, self.originals, self.patience)
        began, lost = time.monotonic(), ""
        try:
            fault.attempt(one)
            one.check_no_processes()
        except LostError as error:
            lost = str(error)
        except Exception:  # a fault of the try itself counts too, until it is understood
            lost = traceback.format_exc()
        finally:
            one.kill_processes()
        if not lost:
            shutil.rmtree(folder, ignore_errors=True)
        return Result(
            name=name,
            seed=self.seed,
            number=number,
            disturbance=one.disturbance,
            answers=one.answers,
            lost=lost,
            seconds=time.monotonic() - began,
        )

    def keep(self, result: Result) -> None:
        """Append the result to the file, in one write."""
        with self.lock:
            self.results.append(result)
            descriptor = os.open(self.folder / RESULTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(descriptor, (result.model_dump_json() + "\n").encode())
            finally:
                os.close(descriptor)

    def run(self, plan: dict[str, int], minutes: float | None, jobs: int) -> None:
        """Make the missing tries of a plan (tries by class), in random order, `jobs` at a time.

        No try starts after `minutes`.
        """
        done = {(result.name, result.number) for result in self.results}
        todo = [(name, number) for name in plan for number in range(plan[name]) if (name, number) not in done]
        random.Random(self.seed).shuffle(todo)  # noqa: S311 - so that a short campaign tries all classes
        end = time.monotonic() + 60 * minutes if minutes else float("inf")
        queue, total = iter(todo), len(todo)
        with ProgressBar(total, description="tries") as bar, ThreadPoolExecutor(jobs) as pool:
            try:
                for future in [pool.submit(self._work, queue, end, bar) for _ in range(jobs)]:
                    future.result()
            finally:  # after Ctrl-C, only the current tries end
                self.stopped.set()

    def _work(self, queue: Iterator[tuple[str, int]], end: float, bar: ProgressBar) -> None:
        while time.monotonic() < end and not self.stopped.is_set():
            with self.lock:
                name, number = next(queue, ("", 0))
            if not name:
                return
            result = self.attempt(name, FAULTS.get(name), number)
            self.keep(result)
            lost = sum(bool(result.lost) for result in self.results)
            bar.update(description=f"tries, {lost} lost", advance=1)
            if result.lost:
                bar.print(f"LOST {describe(result)}")


def describe(result: Result) -> str:
    again = f"--class {result.name} --seed {result.seed} --try {result.number}"
    return f"{again} ({result.disturbance}): {result.lost}"


def skipped(names: list[str]) -> dict[str, str]:
    """Return why classes cannot run here, by name."""
    reasons = {name: FAULTS.get(name).why_not() for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def print_table(results: list[Result], reasons: dict[str, str]) -> None:
    """Print tries, survived, lost and exit statuses of each class, then the lost tries."""
    by_class: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_class[result.name].append(result)
    table = Table(box=box.MARKDOWN)
    for column in ("class", "tries", "survived", "lost", "seconds", "exit statuses of its commands"):
        table.add_column(column, justify="left" if column in ("class", "exit statuses of its commands") else "right")
    for name, found in [*sorted(by_class.items()), ("all", results)]:
        lost = sum(bool(result.lost) for result in found)
        statuses = Counter(status for result in found for status in result.answers)
        answers = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        seconds = f"{sum(result.seconds for result in found):.0f}"
        table.add_row(name, str(len(found)), str(len(found) - lost), str(lost), seconds, answers)
    console = Console(width=150)
    console.print(table)
    for name, reason in reasons.items():
        console.print(f"{name} was skipped: {reason}", highlight=False, markup=False)
    for result in results:
        if result.lost:
            console.print(f"LOST {describe(result)}", highlight=False, markup=False, soft_wrap=True)
