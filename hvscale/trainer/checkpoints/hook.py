"""Saves checkpoints during training."""

from dataclasses import replace
from pathlib import Path

from hvscale.trainer.checkpoints.store import CheckpointFolder, random_state
from hvscale.trainer.trainer import Hook, StepReport, Trainer


class PeriodicCheckpoints(Hook):
    """Saves a checkpoint every `every` steps and after the last one."""

    def __init__(self, folder: CheckpointFolder, every: int) -> None:
        self.folder, self.every = folder, every

    def on_start(self, trainer: Trainer) -> None:
        """Raises RequestError, on all ranks, if rank 0 cannot write into the folder: now, and not
        only after `every` steps.
        """
        super().on_start(trainer)
        trainer.ranks.all_or_fail(lambda: self.folder.require_writable() if trainer.ranks.rank == 0 else None)

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
