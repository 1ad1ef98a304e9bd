"""One try of the fault campaign: its folder, the commands that it runs, and how they are judged."""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from hvscale.core.errors import EXIT_DONE, EXIT_RANK_FAILED, EXIT_UNTRUSTED, EXIT_WRONG_REQUEST
from hvscale.launch.cleanup import shared_memory
from tests import preloaded
from tests.conftest import PROGRAMS, processes_below
from tests.system import services

STATUSES = (EXIT_DONE, EXIT_WRONG_REQUEST, EXIT_RANK_FAILED, EXIT_UNTRUSTED)
SECONDS = 180.0  # a command that takes longer hangs
END_SECONDS = 30.0  # for the processes of a run after its command has ended
MEMORY_BYTES = 6 << 30  # more than any of these commands needs on the small files here
CRASHES = re.compile(r"Traceback \(most recent call last\)|Fatal Python error|Exception ignored in")
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class LostError(Exception):
    """The try is lost; the message says what went wrong."""


@dataclass
class Answer:
    """How a command ended."""

    words: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        lines = [line for line in self.stderr.splitlines() if line.startswith("hvscale: ")]
        return [line for line in lines if not line.startswith("hvscale: warning: ")]

    def document(self) -> dict[str, Any]:
        """Return the JSON document on stdout. Raises LostError if it is none, or holds a NaN."""

        def not_json(constant: str) -> None:
            raise ValueError(f"it contains {constant}")

        try:
            found = json.loads(self.stdout, parse_constant=not_json)
        except ValueError as error:
            raise LostError(f"`{' '.join(self.words)}` printed no JSON document: {error}") from error
        if not isinstance(found, dict) or not str(found.get("schema", "")).startswith("hvscale/"):
            raise LostError(f"`{' '.join(self.words)}` printed a document without its schema")
        return found


@dataclass
class Running:
    """A command that runs; its output goes to files."""

    words: tuple[str, ...]
    outputs: Path
    pid: int
    wait: Callable[[float], int | None]

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self, seconds: float = SECONDS) -> Answer:
        """Wait for the end. Raises LostError, after killing it, if it takes longer."""
        status = self.wait(seconds)
        if status is None:
            self.kill()
            self.wait(10)
        texts = [(self.outputs / name).read_text(errors="replace") for name in preloaded.OUTPUTS]
        if status is None:
            raise LostError(f"`{' '.join(self.words)}` did not end within {seconds:g} s; its output: {texts[1][-500:]}")
        return Answer(self.words, status, *texts)


@dataclass
class Try:
    """A try; all its random choices come from `random`, so that its number repeats them.

    `disturbance`: what it did, for the report. `answers`: the exit statuses that it saw.
    """

    name: str
    seed: int
    number: int
    folder: Path
    original: Callable[[str], Path]
    patience: float = 1.0
    disturbance: str = ""
    answers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {self.name} {self.number}")  # noqa: S311 - it repeats a try
        self.began = time.time()
        self._commands = 0

    def copy(self, original: str, name: str | None = None) -> Path:
        """Copy the folder or file that `original` made into the try's folder."""
        source, target = self.original(original), self.folder / (name or original)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
        return target

    def start(self, *words: object, forked: bool = False, **environment: str) -> Running:
        """Start `hvscale WORDS` in the try's folder.

        `forked`: in a process that has torch and the readers loaded; only for a single process.
        """
        self._commands += 1
        outputs = self.folder / f"output-{self._commands}"
        outputs.mkdir()
        arguments = [*map(str, words)]
        variables = {**os.environ, **ROOT, "COLUMNS": "200", "HVSCALE_DECODED": str(self.folder / "decoded")}
        variables |= {"PYTHONPATH": str(self.folder), **environment}
        for name in preloaded.OUTPUTS:
            (outputs / name).touch()
        if forked:
            process = preloaded.start(arguments, self.folder, variables, outputs)
            pid = process.pid or 0
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            return Running(("hvscale", *arguments), outputs, pid, partial(preloaded.wait, process))
        with (outputs / "stdout").open("wb") as stdout, (outputs / "stderr").open("wb") as stderr:
            started = subprocess.Popen(
                [str(PROGRAMS / "hvscale"), *arguments],
                cwd=self.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

        def wait(seconds: float) -> int | None:
            with suppress(subprocess.TimeoutExpired):
                return started.wait(seconds)
            return None

        return Running(("hvscale", *arguments), outputs, started.pid, wait)

    def run(self, *words: object, statuses: tuple[int, ...] = STATUSES, forked: bool = True) -> Answer:
        """Run `hvscale WORDS` to its end and judge the answer."""
        return self.judge(self.start(*words, forked=forked), statuses)

    def judge(self, running: Running, statuses: tuple[int, ...] = STATUSES, seconds: float = SECONDS) -> Answer:
        """Wait for the end of a command. Raises LostError unless it ended well or with one error.

        One line says what is wrong; the last lines of a failed rank may follow it.
        """
        answer = running.end(seconds * self.patience)
        self.answers.append(answer.status)
        what = f"`{' '.join(answer.words)}` (exit status {answer.status})"
        if found := CRASHES.search(answer.stdout + answer.stderr):
            text = answer.stdout + answer.stderr
            raise LostError(f"{what}: {text[found.start() :][-1500:]}")
        if answer.status not in statuses:
            raise LostError(f"{what}: {answer.stderr[-800:]}")
        if answer.status in STATUSES[1:] and len(answer.errors) != 1:
            raise LostError(f"{what}: {len(answer.errors)} lines say what is wrong: {answer.stderr[-800:]}")
        if answer.status == EXIT_WRONG_REQUEST and not answer.stderr.rstrip().endswith(answer.errors[0]):
            raise LostError(f"{what}: more follows the error: {answer.stderr[-800:]}")
        return answer

    def judge_interrupted(self, running: Running) -> None:
        """As `judge`, after SIGINT: the command stops, unless it had just ended.

        A signal that comes while Python ends kills the process, which a shell shows as 130, too.
        """
        self.judge(running, (EXIT_DONE, 128 + signal.SIGINT, -signal.SIGINT))

    def pause(self, longest: float) -> None:
        """Wait for a random time."""
        time.sleep(self.random.uniform(0, longest))

    def require(self, good: object, problem: str) -> None:
        """Raises LostError if `good` is false."""
        if not good:
            raise LostError(problem)

    def check_no_processes(self) -> None:
        """Raises LostError, after killing them, if processes of the try's runs outlive it."""
        deadline = time.monotonic() + END_SECONDS * self.patience
        while left := processes_below(self.folder):
            if time.monotonic() > deadline:
                names = [str(process.pid) for process in left]
                self.kill_processes()
                raise LostError(f"processes were left: {', '.join(names)}")
            time.sleep(0.1)

    def kill_processes(self) -> None:
        """Kill what is left of the try's runs."""
        for process in processes_below(self.folder):
            with suppress(psutil.Error):
                process.kill()

    @contextmanager
    def cleaned(self) -> Iterator[None]:
        """Context: what the body leaves outside its folder, `hvscale cleanup` removes."""
        with services.cleanup_lock(exclusive=True):
            yield
            self.check_no_processes()
            self.run("cleanup", statuses=(EXIT_DONE,))
            # A job of another try that ends now still removes its own; what appears later is
            # another try's.
            left = leftovers(self.folder, self.began)
            deadline = time.monotonic() + END_SECONDS
            while left and time.monotonic() < deadline:
                time.sleep(0.5)
                left &= leftovers(self.folder, self.began)
            self.require(not left, f"`hvscale cleanup` left {', '.join(sorted(left))}")


def leftovers(folder: Path, since: float) -> set[str]:
    """Return what runs below the folder left outside it.

    Segments do not name their run: those changed after `since`, in s since 1970, count.
    """
    left = {str(path) for path in shared_memory.unused(Path(tempfile.gettempdir()), since)}
    if shutil.which("ip"):
        state = services.network_state(folder, docker=False)
        left |= {name for name in state["namespaces"] + state["configured namespaces"] if name.startswith("hvscale-")}
    return left


def wait_for(condition: Callable[[], bool], running: Running, seconds: float = SECONDS) -> bool:
    """Wait until the condition holds; False if the command ended or the time is over before."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline or not psutil.pid_exists(running.pid):
            return False
        with suppress(psutil.Error):
            if psutil.Process(running.pid).status() == psutil.STATUS_ZOMBIE:
                return False
        time.sleep(0.01)
    return True


def has_lines(path: Path, count: int) -> bool:
    """Return whether a file exists and has `count` lines."""
    return path.exists() and path.read_bytes().count(b"\n") >= count


def created(process: psutil.Process) -> tuple[float, int]:
    """Return when a process was created; the pid decides within a tick of the clock."""
    return process.create_time(), process.pid


def ranks_of(folder: Path) -> dict[int, psutil.Process]:
    """Return the living ranks of the runs in a folder: the innermost process of each."""
    found: dict[int, psutil.Process] = {}
    for process in processes_below(folder):
        with suppress(psutil.Error):
            rank = process.environ().get("OMPI_COMM_WORLD_RANK", "")
            if rank.isdigit() and (int(rank) not in found or created(process) > created(found[int(rank)])):
                found[int(rank)] = process
    return found
