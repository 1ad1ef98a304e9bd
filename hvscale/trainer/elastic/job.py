"""Training under `horovodrun --min-np N --host-discovery-script SCRIPT`: survives lost ranks and
changing hosts.

Horovod's launcher starts processes on new hosts and tells rank 0 about them. For the trainer each
change is a resume inside the process: all present ranks run `train_on` again, from a `Checkpoint`
in memory. So nothing here depends on a model or a data set, and a new rank does what the others do.

Of Horovod's own `hvd.elastic.run` (0.28.1) only the notifications are used. It skips the
synchronisation after a host was removed, for which ranks that join at the same time wait forever,
and it initialises Horovod before the other ranks are known to be there (see `rendezvous`).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import horovod.torch as hvd
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError

from hvscale.core.errors import RequestError
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.elastic import rendezvous
from hvscale.trainer.elastic.commits import Commits
from hvscale.trainer.progress import say
from hvscale.trainer.ranks import Ranks, RanksChangedError
from hvscale.trainer.result import TrainResult
from hvscale.trainer.training import train_on


class ElasticRanks(Ranks):
    """A rank that dies or cannot start does not end the other ranks."""

    # With both the cycle time and the fusion threshold set (the user may set the latter), a second
    # hvd.init() ends by SIGSEGV (0.28.1).
    on_cpu: ClassVar[dict[str, str]] = {}

    def __init__(self, commits: Commits) -> None:
        """Collective. Raises RequestError as Ranks does."""
        super().__init__()
        self.commits = commits
        commits.share(self)

    def end(self, errors: list[RequestError | None]) -> None:
        """A new rank that cannot start, for instance without its data, leaves alone; otherwise all
        end.
        """
        failed_old = [
            error for error, old in zip(errors, self.commits.had_commit, strict=True) if old and error is not None
        ]
        if failed_old or not any(self.commits.had_commit):
            super().end(errors)
        own = errors[self.rank]
        if own is not None:
            raise own
        raise RanksChangedError("a new rank cannot start")

    @contextmanager
    def end_if_a_rank_is_lost(self) -> Iterator[None]:
        try:
            yield
        except HorovodInternalError as error:
            raise RanksChangedError("a rank was lost") from error


def train(config: TrainConfig) -> TrainResult:
    """`train_on` with the ranks that are present, again after each change, until training is
    done.
    """
    commits = Commits()
    rendezvous.wait_for_all_ranks()
    while True:
        try:
            ranks = ElasticRanks(commits)
            notification_manager.init()
            notification_manager.register_listener(commits)
            own = config if commits.run is None else config.model_copy(update={"run": commits.run})
            return train_on(own, ranks, commits)
        except (RanksChangedError, HorovodInternalError) as change:
            if rendezvous.rank() == 0:
                say(f"hvscale: {str(change).splitlines()[0]}: the ranks regroup")
        # Cleared before they regroup: new ranks may not know of hosts that change from now on.
        commits.hosts_changed = False
        hvd.shutdown()
        gc.collect()  # the old model and optimizer refer to each other
        rendezvous.rejoin()
