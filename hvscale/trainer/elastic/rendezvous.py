"""How a rank of an elastic job comes to `hvd.init()`: when all others have come, too.

Horovod 0.28.1 connects the ranks in a thread whose C++ exceptions nobody catches. A rank that waits there for one that has
died, cannot be started, or needs more than 30 s to import PyTorch is aborted, and with it the job. So the ranks wait for
each other here first, by keys in the launcher's own store, and when one does not come they ask the launcher to form the
job anew. It does when each process of the job before has asked, or ended: one that has ended is left out, with its host.
"""

import os
import time
from http.client import HTTPConnection, HTTPException

from hvscale.core.errors import EXIT_DONE, RankFailedError
from hvscale.trainer.progress import say

# What the launcher tells a rank, in its order.
SLOT = tuple(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"))
# What rank 0 waits for the others. One that comes later asks the launcher at once, where those before it wait.
ARRIVE_SECONDS = 30.0
LOOK_SECONDS = 0.1
# Keys of this scope, which the launcher empties each time it forms the job: a rank's number when it has arrived, and rank 0's verdict.
SCOPE, VERDICT, ALL, TOO_FEW = "hvscale_arrived", "verdict", b"all", b"too few"


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def arrive() -> None:
    """Wait until all ranks have come here. Raises SystemExit when this one is no longer part of the job, RankFailedError as `request` does."""
    while not all_arrived():
        ask()


def come_back() -> None:
    """The same, after `hvd.shutdown()`."""
    os.environ.pop("HOROVOD_ELASTIC", None)  # or else Horovod asks, too, and the launcher takes it for the next time
    ask()
    arrive()


def ask() -> None:
    """Ask the launcher what this rank is now; it answers when it has formed the job anew, for which it may wait for hosts."""
    told = request("GET", "rank_and_size", f"{os.environ['HOROVOD_HOSTNAME']}:{os.environ['HOROVOD_LOCAL_RANK']}")
    slot = dict(zip(SLOT, (told or b"").decode().split(","), strict=True))
    if slot["HOROVOD_RANK"] == "-1":
        say("hvscale: this host has been taken out of the job")
        raise SystemExit(EXIT_DONE)
    os.environ.update(slot)


def all_arrived() -> bool:
    """Whether all ranks are there: rank 0 decides, so that no two can think otherwise."""
    own, decides = str(rank()), rank() == 0
    request("PUT", SCOPE, own, b"here")
    missing = [str(other) for other in range(int(os.environ["HOROVOD_SIZE"]))]
    # The others wait for rank 0 to come, and then for its verdict.
    deadline = time.monotonic() + ARRIVE_SECONDS * (1 if decides else 2)
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
        time.sleep(LOOK_SECONDS)


def request(method: str, scope: str, key: str, value: bytes | None = None) -> bytes | None:
    """What the launcher's store answers; None where it has no such key. Raises RankFailedError when the launcher has ended."""
    server = HTTPConnection(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    try:
        server.request(method, f"/{scope}/{key}", value)
        answer = server.getresponse()
        content = answer.read()
    except (OSError, HTTPException) as error:
        raise RankFailedError(f"horovodrun does not answer any more ({error})", []) from error
    finally:
        server.close()
    return None if answer.status == 404 else content
