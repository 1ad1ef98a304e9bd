"""Training under `horovodrun --min-np N --host-discovery-script SCRIPT`: hosts come and go.

Horovod's launcher starts processes on new hosts and notifies rank 0. The trainer handles each
change as a resume inside the process: all present ranks run `train_on` again, from a `Checkpoint`
in memory (a commit). So nothing here depends on a model or a data set, and new ranks run the same
code.

This uses only the notifications of Horovod's own `hvd.elastic.run` (0.28.1), which has two defects.
It skips the synchronisation after a host was removed, so that ranks joining at the same time hang.
And it initialises Horovod before the other ranks are known to be present (see
`wait_for_all_ranks`).
"""

import copy
import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, ClassVar

import horovod.torch as hvd
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError

from hvscale.core.errors import EXIT_DONE, RankFailedError, RequestError
from hvscale.trainer.checkpoints.resume import without_tensors
from hvscale.trainer.checkpoints.store import Checkpoint
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.progress import log_line
from hvscale.trainer.ranks import Ranks, RanksChangedError
from hvscale.trainer.result import TrainResult
from hvscale.trainer.trainer import Hook, StepReport, Trainer
from hvscale.trainer.training import train_on

# What the launcher assigns to a rank, in the order of its reply.
ASSIGNMENT = tuple(
    f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
)
# How long rank 0 waits for the others. A rank that arrives later asks the launcher for an
# assignment, where it meets the others.
ARRIVAL_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.1
# The launcher empties this scope of its store each time it forms the job. Its keys: the number of
# each rank that arrived, and rank 0's verdict.
SCOPE, VERDICT, ALL_ARRIVED, TOO_FEW = "hvscale_arrived", "verdict", b"all", b"too few"


def train_elastic(config: TrainConfig) -> TrainResult:
    """Run `train_on` with the ranks present, again after each change, until training is done."""
    commits = Commits()
    wait_for_all_ranks()
    while True:
        try:
            ranks = ElasticRanks(commits)
            notification_manager.init()
            notification_manager.register_listener(commits)
            config_with_run = config if commits.run is None else config.model_copy(update={"run": commits.run})
            return train_on(config_with_run, ranks, commits)
        except (RanksChangedError, HorovodInternalError) as change:
            if assigned_rank() == 0:
                log_line(f"hvscale: {str(change).splitlines()[0]}: the ranks regroup")
        # Cleared before the ranks regroup: new ranks may miss changes of hosts from now on.
        commits.hosts_changed = False
        hvd.shutdown()
        gc.collect()  # the old model and optimizer refer to each other
        rejoin()


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


class ElasticRanks(Ranks):
    """A rank that dies or cannot start does not end the other ranks."""

    # With both the cycle time and the fusion threshold set (users may set the latter), a second
    # hvd.init() ends in SIGSEGV (0.28.1).
    cpu_environment: ClassVar[dict[str, str]] = {}

    def __init__(self, commits: Commits) -> None:
        """Collective. Raises RequestError as Ranks does."""
        super().__init__()
        self.commits = commits
        commits.synchronize(self)

    def handle_errors(self, errors: list[RequestError | None]) -> None:
        """If only new ranks cannot start, for instance without the data, only they end."""
        old_rank_failed = any(
            error is not None for error, old in zip(errors, self.commits.had_commit, strict=True) if old
        )
        if old_rank_failed or not any(self.commits.had_commit):
            super().handle_errors(errors)
        own_error = errors[self.rank]
        if own_error is not None:
            raise own_error
        raise RanksChangedError("a new rank cannot start")

    @contextmanager
    def end_if_a_rank_is_lost(self) -> Iterator[None]:
        try:
            yield
        except HorovodInternalError as error:
            raise RanksChangedError("a rank was lost") from error


def wait_for_all_ranks() -> None:
    """Return once all ranks are present. Call it before `hvd.init()`.

    Horovod 0.28.1 connects the ranks in a thread whose C++ exceptions nobody catches. If a rank
    dies there, cannot be started, or needs more than 30 s to import PyTorch, the ranks that wait
    for it are aborted, and the job with them. So the ranks wait for each other here first, through
    keys in the launcher's store. If one does not arrive, they ask the launcher to form the job
    again. The launcher does so once each process of the previous job has asked or ended. It drops
    processes that ended, with their hosts.

    Raises SystemExit if this rank no longer belongs to the job, RankFailedError as `ask_store`
    does.
    """
    while not all_arrived():
        request_assignment()


def rejoin() -> None:
    """`wait_for_all_ranks` after `hvd.shutdown()`."""
    os.environ.pop("HOROVOD_ELASTIC", None)  # otherwise Horovod asks too, which counts as the next round
    request_assignment()
    wait_for_all_ranks()


def assigned_rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def request_assignment() -> None:
    """Ask the launcher for this process's rank. It replies once it has formed the job.

    It may wait for hosts first.
    """
    reply = ask_store("GET", "rank_and_size", f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}")
    assignment = dict(zip(ASSIGNMENT, (reply or b"").decode().split(","), strict=True))
    if assignment["HOROVOD_RANK"] == "-1":
        log_line("hvscale: this host was removed from the job")
        raise SystemExit(EXIT_DONE)
    os.environ.update(assignment)


def all_arrived() -> bool:
    """Whether all ranks are present. Rank 0 decides, so that all ranks agree."""
    rank = assigned_rank()
    ask_store("PUT", SCOPE, str(rank), b"here")
    missing = [str(other) for other in range(int(os.environ["HOROVOD_SIZE"]))]
    # The others wait for rank 0 to arrive, and then for its verdict.
    deadline = time.monotonic() + ARRIVAL_TIMEOUT_SECONDS * (1 if rank == 0 else 2)
    while True:
        while rank == 0 and missing and ask_store("GET", SCOPE, missing[-1]) is not None:
            missing.pop()
        late = time.monotonic() > deadline
        if rank == 0 and (late or not missing):
            ask_store("PUT", SCOPE, VERDICT, TOO_FEW if missing else ALL_ARRIVED)
        verdict = ask_store("GET", SCOPE, VERDICT)
        if verdict is not None:
            return verdict == ALL_ARRIVED
        if late:
            ask_store("DELETE", SCOPE, str(rank))
            return False
        time.sleep(POLL_SECONDS)


def ask_store(method: str, scope: str, key: str, value: bytes | None = None) -> bytes | None:
    """The reply of the launcher's key-value store; None if it has no such key.

    Raises RankFailedError if the launcher is gone.
    """
    store = HTTPConnection(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    try:
        store.request(method, f"/{scope}/{key}", value)
        reply = store.getresponse()
        content = reply.read()
    except (OSError, HTTPException) as error:
        raise RankFailedError(f"horovodrun no longer answers ({error})", []) from error
    finally:
        store.close()
    return None if reply.status == 404 else content
