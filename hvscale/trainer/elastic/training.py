"""Training under `horovodrun --min-np N --host-discovery-script SCRIPT`: ranks die, hosts come and go, and it goes on from the last commit.

Horovod's launcher starts processes on new hosts and tells rank 0 of them. To the trainer a change is a resume inside the
process: all ranks that there are then run the whole of `hvscale.trainer.trainer.train_on` again, from a `Checkpoint` in memory.
So nothing here knows a model or a data set, and a new rank does what the others do.

Of Horovod's own `hvd.elastic.run` (0.28.1) only the notifications are used: it leaves out the synchronisation after a host
was taken away, which new ranks that come at the same time wait for without end, and it initialises Horovod before the
others are known to be there (`hvscale.trainer.elastic.rendezvous`).
"""

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import horovod.torch as hvd
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError

from hvscale.core.errors import RequestError
from hvscale.trainer.checkpoints.resume import without_tensors
from hvscale.trainer.checkpoints.store import Checkpoint
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.elastic import rendezvous
from hvscale.trainer.progress import say
from hvscale.trainer.ranks import Ranks, RanksChangedError
from hvscale.trainer.result import TrainResult
from hvscale.trainer.trainer import train_on


class Commits:
    """What a rank keeps in its memory for the time when ranks come or go."""

    def __init__(self) -> None:
        self.newest: Checkpoint | None = None
        """Where training goes on; on a new rank without tensors, which the others send it."""
        self.run: Path | None = None
        """The run folder, once there is one."""
        self.np = 0
        """Ranks that there were at the newest commit."""
        self.root = 0
        """A rank that has the newest commit."""
        self.old: list[bool] = []
        """Of each rank: whether it has a commit."""
        self.hosts_changed = False
        """Whether the launcher has told this rank that hosts have come or gone."""

    def on_hosts_updated(self, timestamp: int, change: Any) -> None:
        """Called by Horovod, in a thread of its own."""
        self.hosts_changed = True

    def save(self, checkpoint: Checkpoint, ranks: Ranks) -> None:
        """Copied to where it lies, which on a GPU is much faster than to the host. No message."""
        copied = {"model": copy.deepcopy(checkpoint.model), "optimizer": copy.deepcopy(checkpoint.optimizer)}
        self.newest = Checkpoint(**{**vars(checkpoint), **copied})
        self.np = ranks.size

    def share(self, ranks: Ranks) -> None:
        """Let all ranks know the newest commit. Collective.

        A rank may have one more than the others, when it had ended its step before it learnt that another one had died.
        """
        steps = ranks.gather(self.newest.step if self.newest is not None else -1)
        self.root = steps.index(max(steps))
        self.old = [step >= 0 for step in steps]
        if steps[ranks.rank] < max(steps):
            self.newest = None
        newest, self.run, self.np = ranks.broadcast((without_tensors(self.newest), self.run, self.np), self.root)
        self.newest = self.newest or newest

    def changes(self, config: TrainConfig, ranks: Ranks) -> str:
        """What is another number of ranks' doing, for a person."""
        batches = config.batches_per_allreduce
        images, before = (config.batch_size * batches * np for np in (ranks.size, self.np))
        rate = (
            f"the learning rate is multiplied by {batches * ranks.size}, not {batches * self.np}"
            if config.scale_learning_rate and not config.use_adasum
            else "the learning rate is not scaled by ranks and stays"
        )
        if ranks.size == self.np:
            return f"other ranks, np {ranks.size} as before: a step takes {images} images, the learning rate stays"
        return f"np is {ranks.size}, it was {self.np}: a step takes {images} images, not {before}; {rate}"


class ElasticRanks(Ranks):
    """A rank that dies, or that cannot begin, does not end the others."""

    # Where the cycle time is set and the fusion threshold, too, which the user may have done, another hvd.init() ends by SIGSEGV (0.28.1).
    on_cpu: ClassVar[dict[str, str]] = {}

    def __init__(self, commits: Commits) -> None:
        """Collective. Raises RequestError as Ranks does."""
        super().__init__()
        self.commits = commits
        commits.share(self)

    def end(self, errors: list[RequestError | None]) -> None:
        """A new rank that cannot begin, for want of its data for instance, leaves alone; else all end."""
        failed_old = [error for error, old in zip(errors, self.commits.old, strict=True) if old and error is not None]
        if failed_old or not any(self.commits.old):
            super().end(errors)
        own = errors[self.rank]
        if own is not None:
            raise own
        raise RanksChangedError("a new rank cannot begin")

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        try:
            yield
        except HorovodInternalError as error:
            raise RanksChangedError("a rank has died") from error


def train(config: TrainConfig) -> TrainResult:
    """As `hvscale.trainer.trainer.train_on`, again each time ranks have come or gone, until the training is done."""
    commits = Commits()
    rendezvous.arrive()
    while True:
        try:
            ranks = ElasticRanks(commits)
            notification_manager.init()
            notification_manager.register_listener(commits)
            own = config if commits.run is None else config.model_copy(update={"run": commits.run})
            return train_on(own, ranks, commits)
        except (RanksChangedError, HorovodInternalError) as change:
            if rendezvous.rank() == 0:
                say(f"hvscale: {str(change).splitlines()[0]}: the ranks gather anew")
        # Before they do, because of hosts that come from now on the new ranks may not know.
        commits.hosts_changed = False
        hvd.shutdown()
        gc.collect()  # the model and the optimizer that have just been left refer to each other
        rendezvous.come_back()
