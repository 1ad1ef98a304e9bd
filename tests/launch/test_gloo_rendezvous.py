"""The server through which ranks over Gloo find each other."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hvscale.launch.flavours import _gloo_rendezvous
from hvscale.launch.flavours._gloo_rendezvous import rendezvous
from hvscale.launch.job import Job, Nodes
from tests.conftest import HANG_SECONDS

RANKS = 100
# A client that finds the queue full tries again after 1 s.
PATIENCE_SECONDS = 0.9


def test_all_ranks_may_ask_while_the_server_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = threading.Event()
    accept = _gloo_rendezvous.Server.get_request

    def accept_later(server: _gloo_rendezvous.Server) -> object:
        idle.wait()
        return accept(server)

    monkeypatch.setattr(_gloo_rendezvous.Server, "get_request", accept_later)
    with rendezvous(Job(RANKS, [], tmp_path, {}, Nodes(())), []) as variables:
        address, _, secret = variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
        host, _, port = address.partition(":")

        def connect(_: int) -> socket.socket:
            return socket.create_connection((host, int(port)), PATIENCE_SECONDS)

        try:
            with ThreadPoolExecutor(RANKS) as ranks:
                connections = list(ranks.map(connect, range(RANKS)))
        finally:
            idle.set()
        for connection in connections:
            with connection:
                connection.settimeout(HANG_SECONDS)
                connection.sendall(f"GET /{secret}:{port}/some/key HTTP/1.1\r\n\r\n".encode())
                assert connection.recv(100).startswith(b"HTTP/1.0 404 ")
