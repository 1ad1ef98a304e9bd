"""Reports what a host has and which other hosts it can reach, before the ranks start there.

Standard library only. The first line of stdin is `{"run": path, "packages": [...]}`; the answer is
one line of JSON. The second line is `[[address, port], ...]`, where the other hosts listen
meanwhile; the answer is the list of unreachable addresses. The program ends when stdin closes.
"""

import fcntl
import ipaddress
import json
import os
import platform
import socket
import struct
import sys
from importlib import metadata

SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
REACH_SECONDS = 5


def versions(packages: list[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def interface_of(address: str) -> tuple[str, str]:
    """The name and network (CIDR) of the interface with this IPv4 address; empty if none."""

    def interface_address(what: int, name: str) -> str:
        return socket.inet_ntoa(fcntl.ioctl(probe_socket, what, struct.pack("256s", name.encode()))[20:24])

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        for _, name in socket.if_nameindex():
            try:
                if interface_address(SIOCGIFADDR, name) == address:
                    return name, str(
                        ipaddress.ip_network(f"{address}/{interface_address(SIOCGIFNETMASK, name)}", strict=False)
                    )
            except OSError:  # an interface without an address
                continue
    return "", ""


def unreachable(others: list[list[object]]) -> list[str]:
    """The addresses that refuse a connection or do not answer."""
    failed = []
    for address, port in others:
        try:
            socket.create_connection((str(address), int(str(port))), timeout=REACH_SECONDS).close()
        except OSError:
            failed.append(str(address))
    return failed


def main() -> None:
    question = json.loads(sys.stdin.readline())
    # "client address, client port, server address, server port", from the ssh server itself, so
    # that no name must be resolved.
    controller, _, address, _ = os.environ["SSH_CONNECTION"].split()
    name, network = interface_of(address)
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        found = {
            "controller": controller,
            "address": address,
            "port": listener.getsockname()[1],
            "interface": name,
            "network": network,
            "versions": versions(question["packages"]),
            "sees_run": os.path.exists(question["run"]),  # noqa: PTH110
        }
        print(json.dumps(found), flush=True)
        others = json.loads(sys.stdin.readline() or "[]")
        print(json.dumps(unreachable(others)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
