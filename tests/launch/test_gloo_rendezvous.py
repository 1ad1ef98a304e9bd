"""The server through which ranks over Gloo find each other."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hvscale.launch.flavours import _gloo_rendezvous
from hvscale.launch.flavours._gloo_rendezvous import rendezvous
from hvscale.launch.job import Job, Nodes

RANKS = 100
# A client whose connection is refused by a full queue tries again after 1 s.
PATIENCE_SECONDS = 0.9


class Store:
    """A served store: where it is, and the path that its ranks may use."""

    def __init__(self, variables: dict[str, str]) -> None:
        host_and_port, _, secret = variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
        self.port = int(variables["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        self.host = host_and_port.partition(":")[0]
        self.path = f"/{secret}:{self.port}/some/key"

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=PATIENCE_SECONDS)

    def request(self, connection: socket.socket, method: str, body: bytes = b"") -> None:
        head = f"{method} {self.path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with rendezvous(Job(RANKS, [], tmp_path, {}, Nodes(())), []) as variables:
        yield Store(variables)


def test_all_ranks_may_ask_while_the_server_is_busy(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = threading.Event()
    accept = _gloo_rendezvous.Server.get_request

    def accept_later(server: _gloo_rendezvous.Server) -> object:
        idle.wait()
        return accept(server)

    monkeypatch.setattr(_gloo_rendezvous.Server, "get_request", accept_later)
    try:
        with ThreadPoolExecutor(RANKS) as ranks:
            connections = list(ranks.map(lambda _: store.connect(), range(RANKS)))
    finally:
        idle.set()
    for connection in connections:
        with connection:
            connection.settimeout(None)
            store.request(connection, "GET")
            assert connection.recv(100).startswith(b"HTTP/1.0 404 ")
