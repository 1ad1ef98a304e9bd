"""Writes each step to steps.jsonl and shows progress."""

import math

from hvscale.core.run_folder import RunFolder
from hvscale.trainer.progress import log_line, progress_display, warn
from hvscale.trainer.steps_file import StepRecord, StepsFile
from hvscale.trainer.trainer import Hook, StepReport, Trainer


class StepLogHook(Hook):
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
