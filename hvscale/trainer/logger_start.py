"""Rank 0's side of watching: it starts a process for each watcher and tells it of the end. Nothing of it stands in a training step."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import IO, cast

from hvscale.core.documents import to_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.trainer.checkpoints.resume import warn
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.loggers import FINISH_SECONDS, WATCHERS, Watched
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.result import TrainResult

# After training that failed, or was asked to stop: what is still to be sent matters less than ending in time.
HURRY_SECONDS = 5.0


class Watch:
    """To be entered before the run folder is, so that watchers end after it is complete, and begun when steps.jsonl is there."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        """Raises RequestError, on all ranks, when a package lacks or --one-rank-run cannot be used."""
        self.config, self.ranks = config, ranks
        self.asked = [kind for kind in WATCHERS.values() if kind.asked_for(config)] if ranks.rank == 0 else []
        self.one_rank_images_per_second = ranks.together(self._check)
        self.processes: list[WatcherProcess] = []

    def _check(self) -> float | None:
        for kind in self.asked:
            try:
                metadata.version(kind.package)
            except metadata.PackageNotFoundError as error:
                raise RequestError(
                    f"--{kind.name} needs a package that is not installed: {sys.executable} -m pip install {kind.package}"
                ) from error
        if self.ranks.rank != 0 or self.config.one_rank_run is None:
            return None
        return images_per_second_of_one_rank(self.config.one_rank_run, self.config.model)

    def begin(self, run: RunFolder) -> None:
        watched = Watched(
            path=run.path.absolute(),
            config=self.config,
            np=self.ranks.size,
            one_rank_images_per_second=self.one_rank_images_per_second,
        )
        for kind in self.asked:
            try:
                self.processes.append(WatcherProcess(kind.name, watched))
            except OSError as error:
                warn(f"--{kind.name} cannot begin ({error.strerror}): training goes on without it")

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + (FINISH_SECONDS if kind is None else HURRY_SECONDS)
        for process in self.processes:
            process.end(kind is None, deadline)


class WatcherProcess:
    """`hvscale.trainer.logger_process` for one watcher. What its client prints goes to logs/NAME.log of the run."""

    def __init__(self, name: str, watched: Watched) -> None:
        """Raises OSError when it cannot be started."""
        self.name, self.warned = name, False
        logs = watched.run.logs
        logs.mkdir(exist_ok=True)
        self.log = logs / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hvscale.trainer.logger_process", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for rank 0, and the client's helpers are to be ended with it
            )
        self.stdin, self.stdout = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        self.listener = threading.Thread(target=self._listen, name=f"hvscale-{name}", daemon=True)
        self.listener.start()
        self._tell(to_json(watched, indent=None))

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # of one that has ended already its warning or status speaks
            self.stdin.write(line + "\n")
            self.stdin.flush()

    def _listen(self) -> None:
        for line in self.stdout:
            self._warn(line.rstrip())

    def _warn(self, text: str) -> None:
        self.warned = True
        warn(f"--{self.name}: {text}")

    def end(self, finished: bool, deadline: float) -> None:
        """Wait until it has ended, or end it at the deadline, in `time.monotonic`'s seconds."""
        self._tell("finished" if finished else "failed")
        with suppress(OSError):
            self.stdin.close()
        try:
            status = self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.listener.join(1)
        if status is None:
            self._warn("ended before it had sent everything, because it took too long; the run folder has it all")
        elif status != 0 and not self.warned:
            self._warn(f"its process ended with status {status}: {self.log}")


def images_per_second_of_one_rank(path: Path, model: str) -> float:
    """Raises RequestError when `path` is not the run folder of a training of `model` on one rank."""
    try:
        result = TrainResult.read(path)
    except RequestError as error:
        raise RequestError(
            f"--one-rank-run {path}: no result.json of a training is there: give its run folder"
        ) from error
    if result.np != 1 or result.model != model:
        raise RequestError(
            f"--one-rank-run {path}: is of {result.model} on {result.np} ranks: give a run of {model} on one"
        )
    return result.images_per_second
