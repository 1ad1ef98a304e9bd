"""The hooks of every training job: step log, time budget, checkpoints, stop signals, failures."""

import math
import signal
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

from hvscale.core.errors import RequestError, SavedError
from hvscale.core.run_folder import RunFolder
from hvscale.trainer.checkpoints.store import CheckpointFolder, random_state
from hvscale.trainer.progress import log_line, progress_display, warn
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.steps_file import StepRecord, StepsFile
from hvscale.trainer.trainer import Hook, StepReport, Trainer

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # schedulers send them before they end a job
# The first steps are slower (memory is allocated, kernels are compiled), so they are not timed.
WARMUP_STEPS = 3
TIMED_STEPS = 10


class StepLog(Hook):
    """Rank 0 writes each step to steps.jsonl and shows progress on stderr."""

    def __init__(self, run: RunFolder, resumed: bool) -> None:
        """`resumed`: steps.jsonl may exist; its later steps are dropped."""
        self.run, self.resumed = run, resumed
        self.steps_file: StepsFile | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Collective. Raises RequestError, on all ranks, if steps.jsonl cannot be created."""
        super().on_start(trainer)
        after = trainer.step if self.resumed else None
        self.steps_file = trainer.ranks.all_or_fail(
            lambda: StepsFile(self.run.steps, after, warn) if trainer.ranks.rank == 0 else None
        )
        if trainer.ranks.rank == 0:
            self.display = progress_display(trainer.workload.loss_decimals)
            self.display.__enter__()

    def after_epoch(self, epoch: int, mean_loss: float) -> None:
        if self.steps_file is not None:
            log_line(f"epoch {epoch}: mean loss {mean_loss:.{self.trainer.workload.loss_decimals}f}")

    def after_step(self, step: StepReport) -> None:
        if self.steps_file is None:
            return
        record = StepRecord(
            step=step.number,
            steps=self.trainer.steps,
            images=self.trainer.images_per_step * self.trainer.ranks.size,
            seconds=step.seconds,
            loss=step.loss if math.isfinite(step.loss) else None,
            learning_rate=step.learning_rate,
            data_wait_seconds=step.data_wait_seconds,
            communication_seconds=step.update.communication_seconds,
            epoch_loss=step.epoch_loss,
            skipped=step.update.skipped,
        )
        self.steps_file.write(record)
        self.display.show(record)

    def on_end(self) -> None:
        if self.steps_file is not None:
            self.display.__exit__(None, None, None)
            self.steps_file.close()


class TimeBudget(Hook):
    """`--seconds`: sets `trainer.steps` as soon as the ranks have agreed on a number of steps."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_step(self, step: StepReport) -> None:
        trainer = self.trainer
        if trainer.steps is None:
            steps = agreed_steps(self.seconds, trainer.step_seconds, trainer.ranks)
            if steps is not None:
                trainer.steps = trainer.step - len(trainer.step_seconds) + steps


def agreed_steps(budget_seconds: float, step_seconds: list[float], ranks: Ranks) -> int | None:
    """The number of steps that fit into the budget; None until enough are timed. Collective.

    Call it after every step with the seconds of all steps so far. The ranks average their
    measurements, so all get the same number. It stays fixed, so that the learning-rate schedule no
    longer depends on the machine's speed. If the timed steps alone would exceed the budget, the
    first step decides.
    """
    done = len(step_seconds)
    if done == 1:
        first = fmean(ranks.allgather(step_seconds[0]))
        return max(1, round(budget_seconds / first)) if first * (WARMUP_STEPS + TIMED_STEPS) > budget_seconds else None
    if done == WARMUP_STEPS + TIMED_STEPS:
        left = budget_seconds - fmean(ranks.allgather(sum(step_seconds)))
        each = fmean(ranks.allgather(fmean(step_seconds[WARMUP_STEPS:])))
        return done + max(1, round(left / each))
    return None


def images_per_second(images_per_step: int, step_seconds: list[float]) -> float:
    """Throughput without the warm-up steps, unless there are no others; 0 without any steps."""
    timed = step_seconds[WARMUP_STEPS:] or step_seconds[-1:]
    return images_per_step * len(timed) / sum(timed) if timed else 0.0


class PeriodicCheckpoints(Hook):
    """Saves a checkpoint every `every` steps and after the last one."""

    def __init__(self, folder: CheckpointFolder, every: int) -> None:
        self.folder, self.every = folder, every

    def after_step(self, step: StepReport) -> None:
        if step.number % self.every == 0 or step.number == self.trainer.steps:
            save_checkpoint(self.trainer, self.folder)


def save_checkpoint(trainer: Trainer, folder: CheckpointFolder) -> Path | None:
    """Save a checkpoint with all ranks' random states. Rank 0 returns its path. Collective."""
    random = trainer.ranks.allgather(random_state(trainer.device))
    file = trainer.ranks.all_or_fail(
        lambda: folder.save(replace(trainer.state_dict(), random=random)) if trainer.ranks.rank == 0 else None
    )
    trainer.restart_clock()
    return file


class StopSignals(Hook):
    """SIGTERM and SIGUSR1 set `trainer.stop_requested` instead of ending the process."""

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        self.previous: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._request_stop) for number in STOP_SIGNALS
        }

    def on_end(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self.trainer.stop_requested = True


class SaveAndStop(Hook):
    """Saves a checkpoint and ends the job when any rank was asked to stop."""

    def __init__(self, checkpoints: CheckpointFolder) -> None:
        self.checkpoints = checkpoints

    def after_step(self, step: StepReport) -> None:
        """Raises SavedError, on all ranks."""
        if step.update.interrupt and step.number != self.trainer.steps:
            file = save_checkpoint(self.trainer, self.checkpoints)
            self.trainer.ranks.fail(
                SavedError(f"asked to stop: saved {file} after step {step.number}; resume with --resume {file}")
            )


class SkippedSteps(Hook):
    """Warns about skipped steps and ends training after several in a row.

    Steps that were skipped because the fp16 loss scale was too high do not count.
    """

    def __init__(self, checkpoints: CheckpointFolder) -> None:
        """`checkpoints`: the error message names the newest one."""
        self.checkpoints = checkpoints
        self.in_a_row = 0

    def after_step(self, step: StepReport) -> None:
        """Raises RequestError, on all ranks, if too many steps in a row were skipped."""
        if not step.update.skipped or step.update.overflowed:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        if self.in_a_row >= self.trainer.update.max_skipped:
            self._fail(step.number)
        if self.trainer.ranks.rank == 0:
            warn(
                f"step {step.number} is skipped: the loss or a gradient is not finite (loss on this rank: {step.loss})"
            )

    def _fail(self, step: int) -> None:
        last = next(iter(self.checkpoints.files()), None)
        self.trainer.ranks.fail(
            RequestError(
                f"the loss or a gradient is not finite in {self.in_a_row} steps in a row, up to step {step}: "
                "lower --learning-rate"
                + (f"; the last good checkpoint is {last}" if last else "; there is no checkpoint yet")
            )
        )
