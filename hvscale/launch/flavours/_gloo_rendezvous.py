"""Horovod's rendezvous server for the ranks of one job, protected by a secret.

Horovod's C++ client sends only `METHOD http://ADDRESS:PORT/SCOPE/KEY` and a body, and uses the
address from the environment unchanged. With the address `HOST:PORT/SECRET` it requests
`/SECRET:PORT/SCOPE/KEY` from HOST:PORT. Only the ranks' own user can read their environment.
"""

import hmac
import re
import secrets
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from horovod.runner.http.http_server import SINGLE_REQUEST_TIMEOUT, RendezvousHandler, RendezvousHTTPServer

from hvscale.launch.job import Job
from hvscale.launch.supervision import init_marker

# The key of a rank's address in the group of all ranks.
GLOBAL_ADDRESS = re.compile(r"/global_?/(?:rank_)?(\d+)")
# A rank stores an address for each other rank: 136 bytes.
BODY_BYTES = 2**16
BODY_BYTES_PER_RANK = 2**10
# The head of a request: longer ones may arrive in parts.
LONGEST_HEAD, HEAD_END = 2**11, b"\r\n\r\n"
# The server notices a shutdown after at most this time, by which it delays the end of each job.
SHUTDOWN_POLL_SECONDS = 0.05


class Server(RendezvousHTTPServer):  # type: ignore[misc]
    daemon_threads = True  # so that an open connection does not delay the end of the run
    # All ranks ask at once, and one that finds the queue full tries again after a second or more.
    # The kernel lowers this to net.core.somaxconn.
    request_queue_size = 4096

    def server_bind(self) -> None:
        """Bind the socket, whose connections Linux keeps back until their first bytes arrive."""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SINGLE_REQUEST_TIMEOUT)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a complete request at once, and any other in a thread that waits for its rest.

        A thread for each request takes over three times as long: all wait for the same lock.
        """
        try:
            arrived = request.recv(LONGEST_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            arrived = b""
        if arrived.startswith((b"GET ", b"DELETE ")) and HEAD_END in arrived:  # neither has a body
            self.process_request_thread(request, client_address)
        else:
            super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects during a request: a rank reports that itself."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(RendezvousHandler):  # type: ignore[misc]
    """Answers only the ranks, and creates the marker files of their start.

    A rank sends PUT when it arrives, and DELETE when all have met.
    """

    wbufsize = 2**16  # sends each answer as a whole
    job: Job
    secret: str
    path: str

    def parse_request(self) -> bool:
        """Check the job's secret and remove it from the path.

        Returns False, after an answer, for a request without it.
        """
        if not super().parse_request():
            return False
        entrance = f"/{self.secret}:{self.server.server_port}"
        given, self.path = self.path[: len(entrance)], self.path[len(entrance) :]
        if hmac.compare_digest(given.encode(), entrance.encode()):
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def do_PUT(self) -> None:  # noqa: N802 - http.server's own name
        try:
            length = int(self.headers["Content-Length"] or "")
        except ValueError:
            length = -1
        if length < 0:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        if length > BODY_BYTES + BODY_BYTES_PER_RANK * self.job.np:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        if rank := self.watched_rank():
            init_marker.begun_file(self.job.run, int(rank)).touch()
        super().do_PUT()

    def do_DELETE(self) -> None:  # noqa: N802 - http.server's own name
        super().do_DELETE()
        if rank := self.watched_rank():
            init_marker.done_file(self.job.run, int(rank)).touch()

    def watched_rank(self) -> str | None:
        """The rank whose global address the request is about, if starts are watched."""
        match = GLOBAL_ADDRESS.fullmatch(self.path)
        return match[1] if match and init_marker.VARIABLE in self.job.rank_environment else None


@contextmanager
def rendezvous(job: Job, slots: list[Any]) -> Iterator[dict[str, str]]:
    """Context: serve the job's ranks; gives the variables that let a rank connect.

    `slots` are Horovod's SlotInfo.
    """
    secret = secrets.token_urlsafe(16)
    server = Server((job.nodes.controller, 0), type("JobHandler", (Handler,), {"job": job, "secret": secret}), False)
    server.init(slots)
    threading.Thread(target=server.serve_forever, args=(SHUTDOWN_POLL_SECONDS,), daemon=True).start()
    try:
        yield {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{job.nodes.controller}:{server.server_port}/{secret}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
        }
    finally:
        server.shutdown()
        server.server_close()
