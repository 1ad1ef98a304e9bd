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

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import ClassVar

import horovod.torch as hvd
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError

from hvscale.core.errors import EXIT_DONE, RankFailedError, RequestError
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.elastic.commits import Commits
from hvscale.trainer.progress import log_line
from hvscale.trainer.ranks import Ranks, RanksChangedError
from hvscale.trainer.result import TrainResult
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
