"""A small web server on 127.0.0.1 for the page of a watched run.

Other users of the machine can reach 127.0.0.1 too, and so can pages of other sites in the user's
browser. So a request needs the random token in its path and a Host header that names this machine,
which a site that rebinds its name to 127.0.0.1 does not have. The server answers from memory: a
request never reads a file.
"""

import errno
import hmac
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hvscale.core.documents import to_json
from hvscale.core.errors import RequestError
from hvscale.profiling.watch.document import Watch
from hvscale.studies.run_watch.page import History, render_watch_page

ADDRESS = "127.0.0.1"
# Any port: at the other end of an ssh tunnel it may be another one.
HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.IGNORECASE)
PATH = re.compile(r"/([^/?#]*)/([a-z.]*)")
MOST_REQUESTS = 32  # at a time
TIMEOUT_SECONDS = 10
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
NOTHING_ALLOWED = "default-src 'none'; frame-ancestors 'none'"


@dataclass(frozen=True)
class _State:
    """The answers, replaced as a whole."""

    name: str
    page_json: bytes
    watch_json: bytes


class WatchServer(ThreadingHTTPServer):
    """Serves the page and its state until `close`."""

    daemon_threads = True

    def __init__(self, port: int, interval: float) -> None:
        """`port` 0: any free one. Raises RequestError if the port cannot be used."""
        self.interval = interval
        self.token = secrets.token_urlsafe(24)
        self.history = History()
        self.state: _State | None = None
        self.slots = threading.BoundedSemaphore(MOST_REQUESTS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise RequestError(f"port {port} is in use: give another with --serve PORT") from error
            raise RequestError(f"cannot use port {port} ({error.strerror}): give another with --serve PORT") from error
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/{self.token}/"

    def start(self) -> None:
        """Answer requests, in threads."""
        self.thread.start()

    def close(self) -> None:
        """Stop answering."""
        self.shutdown()
        self.server_close()
        self.thread.join()

    def show(self, watch: Watch) -> None:
        """Answer with this sample from now on."""
        state = self.history.add(watch)
        self.state = _State(state.title, to_json(state, None).encode(), to_json(watch).encode())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless too many are at work."""
        if self.slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = TIMEOUT_SECONDS
    server_version = "hvscale"
    sys_version = ""

    def do_GET(self) -> None:
        status = self._check()
        found = PATH.fullmatch(self.path)
        if status is not None or found is None or self.server.state is None:
            self._refuse(status or HTTPStatus.NOT_FOUND)
        elif found[2] == "":
            page, nonce = render_watch_page(self.server.state.name, self.server.interval)
            policy = POLICY.format(nonce=nonce)
            self._answer("text/html; charset=utf-8", page.encode(), {"Content-Security-Policy": policy})
        elif found[2] == "state.json":
            self._answer("application/json", self.server.state.page_json)
        elif found[2] == "watch.json":
            self._answer("application/json", self.server.state.watch_json)
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _check(self) -> HTTPStatus | None:
        """The status that refuses the request; None: it may be answered."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not HOST.fullmatch(hosts[0].strip()):
            return HTTPStatus.FORBIDDEN
        origin = self.headers.get("Origin")
        if origin is not None and origin.casefold() != f"http://{hosts[0].strip()}".casefold():
            return HTTPStatus.FORBIDDEN
        # A browser says from where it was sent: by this page, or typed by the user.
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return HTTPStatus.FORBIDDEN
        found = PATH.fullmatch(self.path)
        given = found[1] if found is not None else ""
        is_right = hmac.compare_digest(given.encode(errors="surrogateescape"), self.server.token.encode())
        return None if is_right else HTTPStatus.NOT_FOUND

    def _answer(self, kind: str, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {**HEADERS, "Content-Security-Policy": NOTHING_ALLOWED, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged: their paths hold the token."""
