"""The server through which ranks over Gloo find each other."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from hvscale.launch.flavours import _gloo_rendezvous
from hvscale.launch.flavours._gloo_rendezvous import rendezvous
from hvscale.launch.job import Job, Nodes
from tests.conftest import HANG_SECONDS

RANKS = 100
# A client that finds the queue full tries again after 1 s.
PATIENCE_SECONDS = 0.9
Connect = Callable[..., socket.socket]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Connect, str]]:
    """How to connect to a server, and the path of its scopes."""
    with rendezvous(Job(RANKS, [], tmp_path, {}, Nodes(())), []) as variables:
        address, _, secret = variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
        host, _, port = address.partition(":")

        def connect(timeout: float = HANG_SECONDS) -> socket.socket:
            return socket.create_connection((host, int(port)), timeout)

        yield connect, f"/{secret}:{port}"


def answer(connection: socket.socket, request: str) -> bytes:
    connection.settimeout(HANG_SECONDS)
    connection.sendall(request.encode())
    return b"".join(iter(lambda: connection.recv(1000), b""))


def test_all_ranks_may_ask_while_the_server_is_busy(
    server: tuple[Connect, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, path = server
    idle = threading.Event()
    accept = _gloo_rendezvous.Server.get_request

    def accept_later(server: _gloo_rendezvous.Server) -> object:
        idle.wait()
        return accept(server)

    monkeypatch.setattr(_gloo_rendezvous.Server, "get_request", accept_later)
    try:
        with ThreadPoolExecutor(RANKS) as ranks:
            connections = list(ranks.map(connect, [PATIENCE_SECONDS] * RANKS))
    finally:
        idle.set()
    for connection in connections:
        with connection:
            assert answer(connection, f"GET {path}/some/key HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 404 ")


def test_requests_that_arrive_in_parts_or_never_delay_no_other(
    server: tuple[Connect, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_gloo_rendezvous.Handler, "timeout", HANG_SECONDS)  # on a busy machine, 3 s are short
    connect, path = server
    put = f"PUT {path}/some/key HTTP/1.1\r\nContent-Length: 5\r\n\r\n"
    get = f"GET {path}/some/key HTTP/1.1\r\n\r\n"
    with ExitStack() as stack:
        connections = [stack.enter_context(connect()) for _ in range(5)]
        _, cut, put_first, put_later, get_later = connections
        cut.sendall(get[:7].encode())
        put_later.sendall(put.encode())
        get_later.sendall(get[:-2].encode())
        assert answer(put_first, f"{put}value").startswith(b"HTTP/1.0 200 ")
        assert answer(stack.enter_context(connect()), get).endswith(b"\r\n\r\nvalue")
        assert answer(put_later, "other").startswith(b"HTTP/1.0 200 ")
        assert answer(get_later, "\r\n").endswith(b"\r\n\r\nother")
