"""Saves a checkpoint every few steps."""

from dataclasses import replace
from pathlib import Path

from hvscale.trainer.checkpoints.store import CheckpointFolder, random_state
from hvscale.trainer.hooks.hook import Hook
from hvscale.trainer.trainer import StepReport, Trainer


class PeriodicCheckpoints(Hook):
    """Every `every` steps, and after the last one."""

    def __init__(self, folder: CheckpointFolder, every: int) -> None:
        self.folder, self.every = folder, every

    def after_step(self, step: StepReport) -> None:
        if step.number % self.every == 0 or step.number == self.trainer.steps:
            save_checkpoint(self.trainer, self.folder)


def save_checkpoint(trainer: Trainer, folder: CheckpointFolder) -> Path | None:
    """Gather the random state of all ranks; rank 0 writes the file and returns its path.
    Collective.
    """
    random = trainer.ranks.allgather(random_state(trainer.device))
    file = trainer.ranks.all_or_fail(
        lambda: folder.save(replace(trainer.state_dict(), random=random)) if trainer.ranks.rank == 0 else None
    )
    trainer.restart_clock()
    return file
