"""Makes the ranks of an elastic job wait for each other before `hvd.init()`.

Horovod 0.28.1 connects the ranks in a thread whose C++ exceptions nobody catches. A rank that waits
there for one that died, cannot be started, or needs more than 30 s to import PyTorch is aborted,
and the job with it. So the ranks first wait for each other here, through keys in the launcher's own
store. If one does not arrive, they ask the launcher to form the job again. The launcher does so
once each process of the previous job has asked or ended; it drops a process that ended, with its
host.
"""

import os
import time
from http.client import HTTPConnection, HTTPException

from hvscale.core.errors import EXIT_DONE, RankFailedError
from hvscale.trainer.progress import say

# What the launcher assigns to a rank, in its order.
SLOT = tuple(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"))
# How long rank 0 waits for the others. A later rank asks the launcher at once, and finds the others
# waiting there.
ARRIVAL_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.1
# The launcher empties this scope each time it forms the job. Its keys: the number of each rank that
# arrived, and rank 0's verdict.
SCOPE, VERDICT, ALL, TOO_FEW = "hvscale_arrived", "verdict", b"all", b"too few"


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def wait_for_all_ranks() -> None:
    """Return once all ranks are here.

    Raises SystemExit if this rank no longer belongs to the job, RankFailedError as `request` does.
    """
    while not all_arrived():
        request_assignment()


def rejoin() -> None:
    """The same, after `hvd.shutdown()`."""
    os.environ.pop("HOROVOD_ELASTIC", None)  # otherwise Horovod asks too, which the launcher counts as the next round
    request_assignment()
    wait_for_all_ranks()


def request_assignment() -> None:
    """Ask the launcher for this process's rank. It answers once it has formed the job; it may wait
    for hosts.
    """
    assigned = request("GET", "rank_and_size", f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}")
    slot = dict(zip(SLOT, (assigned or b"").decode().split(","), strict=True))
    if slot["HOROVOD_RANK"] == "-1":
        say("hvscale: this host was removed from the job")
        raise SystemExit(EXIT_DONE)
    os.environ.update(slot)


def all_arrived() -> bool:
    """Whether all ranks are here. Rank 0 decides, so that all ranks agree."""
    own, decides = str(rank()), rank() == 0
    request("PUT", SCOPE, own, b"here")
    missing = [str(other) for other in range(int(os.environ["HOROVOD_SIZE"]))]
    # The others wait for rank 0 to arrive, and then for its verdict.
    deadline = time.monotonic() + ARRIVAL_TIMEOUT_SECONDS * (1 if decides else 2)
    while True:
        while decides and missing and request("GET", SCOPE, missing[-1]) is not None:
            missing.pop()
        late = time.monotonic() > deadline
        if decides and (late or not missing):
            request("PUT", SCOPE, VERDICT, TOO_FEW if missing else ALL)
        verdict = request("GET", SCOPE, VERDICT)
        if verdict is not None:
            return verdict == ALL
        if late:
            request("DELETE", SCOPE, own)
            return False
        time.sleep(POLL_SECONDS)


def request(method: str, scope: str, key: str, value: bytes | None = None) -> bytes | None:
    """The answer of the launcher's store; None if it has no such key. Raises RankFailedError if the
    launcher is gone.
    """
    server = HTTPConnection(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    try:
        server.request(method, f"/{scope}/{key}", value)
        answer = server.getresponse()
        content = answer.read()
    except (OSError, HTTPException) as error:
        raise RankFailedError(f"horovodrun no longer answers ({error})", []) from error
    finally:
        server.close()
    return None if answer.status == 404 else content
