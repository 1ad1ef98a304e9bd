"""The training state that each rank keeps for when ranks are lost or added."""

import copy
from pathlib import Path
from typing import Any

from hvscale.trainer.checkpoints.resume import without_tensors
from hvscale.trainer.checkpoints.store import Checkpoint
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks, RanksChangedError
from hvscale.trainer.trainer import Hook, StepReport, Trainer


class Commits(Hook):
    """Copies of the training state in this rank's memory, for when ranks are lost or added.

    One object lives as long as the process and is a hook of each of its trainers.
    """

    def __init__(self) -> None:
        self.newest: Checkpoint | None = None
        """The state to continue from; without tensors on a new rank, which receives them later."""
        self.run: Path | None = None
        """The run folder, once it exists."""
        self.np = 0
        """Number of ranks at the newest commit."""
        self.root = 0
        """A rank that has the newest commit."""
        self.had_commit: list[bool] = []
        """For each rank, whether it had a commit."""
        self.hosts_changed = False
        """The launcher has told this rank that hosts were added or removed."""

    def on_hosts_updated(self, timestamp: int, change: Any) -> None:
        """Called by Horovod in its own thread."""
        self.hosts_changed = True

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        trainer.hosts_changed = self.hosts_changed

    def before_step(self) -> None:
        self.trainer.hosts_changed = self.hosts_changed

    def after_step(self, step: StepReport) -> None:
        """Commit if due. Raises RanksChangedError, on all ranks, if hosts were added or removed."""
        last = step.number == self.trainer.steps
        if step.update.regroup or step.number % self.trainer.config.commit_every == 0 or last:
            self.commit(self.trainer)
        if step.update.regroup and not last:
            raise RanksChangedError("hosts were added or removed")

    def commit(self, trainer: Trainer) -> None:
        """Copy the state on its own device, much faster than GPU to host. Sends no message."""
        state = trainer.state_dict()
        copies = {"model": copy.deepcopy(state.model), "optimizer": copy.deepcopy(state.optimizer)}
        self.newest = Checkpoint(**{**vars(state), **copies})
        self.np = trainer.ranks.size

    def synchronize(self, ranks: Ranks) -> None:
        """Tell all ranks about the newest commit. Collective.

        A rank may have one commit more than the others if it finished its step before it noticed
        that another rank was lost.
        """
        steps = ranks.allgather(self.newest.step if self.newest is not None else -1)
        self.root = steps.index(max(steps))
        self.had_commit = [step >= 0 for step in steps]
        if steps[ranks.rank] < max(steps):
            self.newest = None
        newest, self.run, self.np = ranks.broadcast((without_tensors(self.newest), self.run, self.np), self.root)
        self.newest = self.newest or newest

    def describe_change(self, config: TrainConfig, ranks: Ranks) -> str:
        """A line for the user about what the new number of ranks changes."""
        batches = config.batches_per_allreduce
        images, before = (config.batch_size * batches * np for np in (ranks.size, self.np))
        rate = (
            f"the learning rate is multiplied by {batches * ranks.size}, not {batches * self.np}"
            if config.scale_learning_rate and not config.use_adasum
            else "the learning rate is not scaled by ranks and stays the same"
        )
        if ranks.size == self.np:
            return f"np is still {ranks.size}: a step takes {images} images, the learning rate stays the same"
        return f"np is {ranks.size}, it was {self.np}: a step takes {images} images, not {before}; {rate}"
