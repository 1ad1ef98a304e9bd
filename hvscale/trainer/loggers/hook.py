"""Rank 0's side of logging: starts a process for each logger and tells it when training ends.

This adds no work to a training step, because the processes read steps.jsonl.
"""

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
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.loggers.logger import FINISH_SECONDS, LOGGERS, LoggedRun
from hvscale.trainer.progress import warn
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.result import TrainResult
from hvscale.trainer.trainer import Hook, Trainer

# After failed or interrupted training, ending in time matters more than sending everything.
FINISH_SECONDS_AFTER_FAILURE = 5.0
END_SECONDS = 5.0  # a killed process ends at once


class Loggers(Hook):
    """Enter it before the run folder, so that loggers end once the folder is complete."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        """Collective. Raises RequestError for a missing package or an invalid --one-rank-run."""
        self.config, self.ranks = config, ranks
        self.requested = [kind for kind in LOGGERS.all().values() if kind.requested(config)] if ranks.rank == 0 else []
        self.one_rank_images_per_second = ranks.all_or_fail(self._check)
        if ranks.rank == 0:
            self._warn_of_unused_options()
        self.run: Path | None = None
        self.processes: list[LoggerProcess] = []

    def _check(self) -> float | None:
        for kind in self.requested:
            try:
                metadata.version(kind.package)
            except metadata.PackageNotFoundError as error:
                raise RequestError(
                    f"--{kind.name} needs a package that is not installed: {sys.executable} -m pip install {kind.package}"
                ) from error
        if self.ranks.rank != 0 or self.config.one_rank_run is None:
            return None
        return images_per_second_of_one_rank(self.config.one_rank_run, self.config.model)

    def _warn_of_unused_options(self) -> None:
        names = {kind.name for kind in self.requested}
        if self.config.wandb_project is not None and "wandb" not in names:
            warn("--wandb-project has no effect without --wandb offline or --wandb online")
        if self.config.one_rank_run is not None and not names:
            warn("--one-rank-run has no effect without --wandb or --tensorboard")

    def in_run(self, run: Path) -> "Loggers":
        """Set the run folder and return this hook."""
        self.run = run
        return self

    def on_start(self, trainer: Trainer) -> None:
        """Start the processes. steps.jsonl exists by now."""
        super().on_start(trainer)
        if self.run is None:
            return
        logged = LoggedRun(
            path=self.run.absolute(),
            config=self.config,
            np=self.ranks.size,
            one_rank_images_per_second=self.one_rank_images_per_second,
        )
        for kind in self.requested:
            try:
                self.processes.append(LoggerProcess(kind.name, logged))
            except OSError as error:
                warn(f"--{kind.name} cannot start ({error.strerror}); training continues without it")

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + (FINISH_SECONDS if kind is None else FINISH_SECONDS_AFTER_FAILURE)
        for process in self.processes:
            process.end(kind is None, deadline)


class LoggerProcess:
    """The process of one logger. Its client's output goes to logs/NAME.log in the run folder."""

    def __init__(self, name: str, logged: LoggedRun) -> None:
        """Raises OSError if it cannot be started."""
        self.name, self.warned = name, False
        logs = logged.run.logs
        logs.mkdir(exist_ok=True)
        self.log = logs / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hvscale.trainer.loggers.logger_process", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C must reach rank 0 only; the client's processes share this group
            )
        self.stdin, self.stdout = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        self.listener = threading.Thread(target=self._listen, name=f"hvscale-{name}", daemon=True)
        self.listener.start()
        self._send(to_json(logged, indent=None))

    def _send(self, line: str) -> None:
        with suppress(OSError):  # it has already ended; its warning or exit status gives the reason
            self.stdin.write(line + "\n")
            self.stdin.flush()

    def _listen(self) -> None:
        for line in self.stdout:
            self._warn(line.rstrip())

    def _warn(self, text: str) -> None:
        self.warned = True
        warn(f"--{self.name}: {text}")

    def end(self, finished: bool, deadline: float) -> None:
        """Wait for the process to end; kill it at the deadline (seconds of `time.monotonic`)."""
        self._send("finished" if finished else "failed")
        with suppress(OSError):
            self.stdin.close()
        try:
            status = self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # If a signal broke off an earlier wait, Popen's lock may be taken: do not wait for ever.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.listener.join(1)
        if status is None:
            self._warn("took too long and was ended before it had sent everything; the run folder is complete")
        elif status != 0 and not self.warned:
            self._warn(f"its process ended with status {status}: see {self.log}")


def images_per_second_of_one_rank(path: Path, model: str) -> float:
    """The throughput of that run. Raises RequestError if it did not train `model` on one rank."""
    try:
        result = TrainResult.read(path)
    except RequestError as error:
        raise RequestError(
            f"--one-rank-run {path}: no result.json of a training run there; name its run folder"
        ) from error
    if result.np != 1 or result.model != model:
        raise RequestError(
            f"--one-rank-run {path}: that run trained {result.model} on {result.np} ranks; "
            f"name a run of {model} on one rank"
        )
    return result.images_per_second
