"""Other hosts, reached by ssh.

They share a file system with this one, which holds the environment and the run folder.
"""

import json
import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunRecord
from hvscale.launch.job import STATUS_OF_SSH_ITSELF, Node, Nodes
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import Placement, PlacementRequest, register
from hvscale.launch.rank_side import host_preflight
from hvscale.launch.supervision import interrupts, programs
from hvscale.launch.supervision.programs import require

CONNECT_SECONDS = 10
SSH_EXIT_SECONDS = 5
FILES_PER_HOST = 4  # a HostConnection takes three, and one is spare
# A host that stops answering while the job runs counts as lost after 30 s. Options in HVSCALE_SSH
# come first and take precedence.
SSH_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": CONNECT_SECONDS,
    "ServerAliveInterval": 10,
    "ServerAliveCountMax": 3,
}
PACKAGES = ["hvscale", "horovod", "torch"]
HOST = re.compile(r"(?P<name>[^\s:=,]+)(?::(?P<slots>[0-9]{1,6}))?")
HOSTFILE_LINE = re.compile(
    rf"{HOST.pattern}(?:\s+slots\s*=\s*(?P<named>[0-9]{{1,6}}))?(?:\s+max[-_]slots\s*=\s*[0-9]+)?"
)


class Ssh(Placement):
    name = "ssh"
    help = "other hosts"
    on_this_machine = False
    takes = implied_by = frozenset({"hosts", "hostfile"})

    def readiness(self) -> str:
        ssh = require(ssh_words()[0], "openssh-client", "--placement ssh")
        return f"{ssh}; hosts are checked when a job starts"

    def check(self, options: PlacementOptions, np: int) -> None:
        self.readiness()
        slots = dict(parse_hosts(options))
        if sum(slots.values()) < np:
            raise RequestError(
                f"-np {np}, but the hosts have {sum(slots.values())} slots: add hosts or slots, as in --hosts a:4,b:4"
            )

    @contextmanager
    def prepare(self, request: PlacementRequest) -> Iterator[Nodes]:
        hosts = [(name, slots) for name, slots in fill_hosts(parse_hosts(request.options), request.np) if slots]
        connections: list[HostConnection] = []
        programs.allow_open_files(FILES_PER_HOST * len(hosts))
        try:
            for name, _ in hosts:
                with interrupts.defer_interrupts():
                    connections.append(HostConnection(name))
            about = {"run": str(request.run / "run.json"), "packages": PACKAGES}
            found = ask_all(connections, about)
            for one, answer in zip(connections, found, strict=True):
                check_host(one.host, answer, request.run)
            unreached = ask_all(connections, [[answer["address"], answer["port"]] for answer in found])
        finally:
            interrupts.disable_interrupts()
            for one in connections:
                one.end()
        for one, addresses in zip(connections, unreached, strict=True):
            for address in addresses:
                other = next(
                    connections[number].host for number, answer in enumerate(found) if answer["address"] == address
                )
                raise RequestError(f"host {one.host} cannot reach {other} ({address}): check the network between them")
        nodes = tuple(
            Node(
                name=name,
                slots=slots,
                address=answer["address"],
                interface=answer["interface"],
                agent=agent(name),
                through_shell=True,
            )
            for (name, slots), answer in zip(hosts, found, strict=True)
        )
        networks = dict.fromkeys(answer["network"] for answer in found if answer["network"])
        yield Nodes(
            nodes,
            controller=found[0]["controller"],
            subnet=",".join(networks) or None,
            on_this_machine=False,
            settings={
                "versions": {one.host: answer["versions"] for one, answer in zip(connections, found, strict=True)}
            },
            lost=lambda: unreachable_hosts([node.name for node in nodes]),
        )

    def recorded_nodes(self, record: RunRecord) -> Nodes:
        names = [one.name for one in record.nodes]
        nodes = tuple(
            Node(one.name, len(one.ranks), one.address, one.interface, agent(one.name), through_shell=True)
            for one in record.nodes
        )
        return Nodes(nodes, on_this_machine=False, lost=lambda: unreachable_hosts(names))


def parse_hosts(options: PlacementOptions) -> list[tuple[str, int]]:
    """Name and slots of each host, in the order given.

    Raises RequestError if there is none, or for an invalid list.
    """
    if options.hosts and options.hostfile:
        raise RequestError("--hosts and --hostfile cannot be combined: use one of them")
    if options.hosts:
        matches = [(text, HOST.fullmatch(text.strip())) for text in options.hosts.split(",")]
        what = "--hosts"
    elif options.hostfile:
        try:
            text = options.hostfile.read_text()
        except OSError as error:
            raise RequestError(f"--hostfile {options.hostfile}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise RequestError(f"--hostfile {options.hostfile}: not a text file in UTF-8") from error
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
        matches = [(line, HOSTFILE_LINE.fullmatch(line)) for line in lines if line]
        what = f"--hostfile {options.hostfile}"
    else:
        raise RequestError("--placement ssh needs hosts: add --hosts a:4,b:4 or --hostfile FILE")
    hosts: dict[str, int] = {}
    for text, match in matches:
        if match is None or match["name"].startswith("-"):
            raise RequestError(
                f"{what}: {text or 'an empty name'} is not a host; write NAME:SLOTS, or NAME slots=SLOTS in a file"
            )
        slots = match["slots"] or match.groupdict().get("named") or "1"
        hosts[match["name"]] = hosts.get(match["name"], 0) + int(slots)
    if not hosts:
        raise RequestError(f"{what}: the list has no hosts")
    return list(hosts.items())


def fill_hosts(hosts: list[tuple[str, int]], np: int) -> list[tuple[str, int]]:
    """The ranks of each host; each is filled before the next one."""
    filled = []
    for name, slots in hosts:
        filled.append((name, min(slots, np)))
        np -= filled[-1][1]
    return filled


def ssh_words() -> list[str]:
    """The ssh command; HVSCALE_SSH replaces it or adds options, as GIT_SSH_COMMAND does for git.

    Raises RequestError if its quotes are not closed.
    """
    text = os.environ.get("HVSCALE_SSH", "ssh")
    try:
        return shlex.split(text) or ["ssh"]
    except ValueError as error:
        raise RequestError(f"HVSCALE_SSH={text}: {error}; write it as in a shell, or unset it") from error


def agent(host: str) -> tuple[str, ...]:
    # The job's environment is an explicit list, so ssh's own variables are added here.
    socket = os.environ.get("SSH_AUTH_SOCK")
    keys = ("env", f"SSH_AUTH_SOCK={socket}") if socket else ()
    options = (word for name, value in SSH_OPTIONS.items() for word in ("-o", f"{name}={value}"))
    return (*keys, *ssh_words(), *options, host)


class HostConnection:
    """A connection to a host, and to the program there that answers questions about it."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end(); a pipe could fill up
        self.received = b""
        self.process = subprocess.Popen(
            [*agent(self.host), shlex.join([sys.executable, "-I", host_preflight.__file__])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )

    def ask(self, question: Any) -> None:
        """Send a question; does nothing if the agent has ended and already written why."""
        with suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.write(json.dumps(question).encode() + b"\n")
                self.process.stdin.flush()

    def answer(self, until: float) -> Any:
        """The answer.

        Raises RequestError, with ssh's message, if none comes before `until` (time.monotonic).
        """
        while b"\n" not in self.received:
            if self.process.stdout is None or not readable(self.process.stdout.fileno(), until - time.monotonic()):
                raise RequestError(
                    f"host {self.host} has not answered by ssh within {programs.answer_seconds():g} s: check that "
                    f"`ssh {self.host} true` works, or allow more time with {programs.ANSWER_VARIABLE}=SECONDS"
                )
            new = os.read(self.process.stdout.fileno(), 65536)
            if not new:
                raise RequestError(self.failure_message())
            self.received += new
        line, _, self.received = self.received.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError as error:
            raise RequestError(self.failure_message()) from error

    def failure_message(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(SSH_EXIT_SECONDS)
        self.errors.seek(0)
        message = self.errors.read().decode(errors="replace")
        last = (message.strip().splitlines() or [f"status {self.process.returncode}"])[-1]
        if self.process.returncode == STATUS_OF_SSH_ITSELF:
            return (
                f"host {self.host} does not answer by ssh ({last}): `ssh {self.host} true` must work without a password"
            )
        return (
            f"host {self.host} cannot run {sys.executable} ({last}): "
            "the environment must be at the same path on every host, for example on a shared file system"
        )

    def end(self) -> None:
        programs.end_session(self.process)
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(OSError):  # an unsent question is dropped
                if stream is not None:
                    stream.close()


def readable(descriptor: int, seconds: float) -> bool:
    looking = select.poll()  # select.select does not support descriptors above 1023
    looking.register(descriptor, select.POLLIN)
    return bool(looking.poll(max(0.0, seconds) * 1000))


def ask_all(connections: list[HostConnection], question: Any) -> list[Any]:
    """Every host's answer to one question.

    Raises RequestError for a host that does not answer in time.
    """
    until = time.monotonic() + programs.answer_seconds()
    for one in connections:
        one.ask(question)
    return [one.answer(until) for one in connections]


def check_host(host: str, answer: dict[str, Any], run: Path) -> None:
    """Raises RequestError if a host has another environment, or does not see the run folder."""
    if not answer["sees_run"]:
        raise RequestError(f"host {host} does not see {run}: use --run with a folder that all hosts share")
    for name, version in answer["versions"].items():
        here = ".".join(map(str, sys.version_info[:3])) if name == "python" else version_here(name)
        if version != here:
            raise RequestError(
                f"host {host} has {name} {version}, this one {here}: install the same environment on all hosts"
            )


def version_here(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def unreachable_hosts(hosts: list[str]) -> dict[str, str]:
    """The hosts that ssh no longer reaches."""
    results = programs.run_all([[*agent(host), "true"] for host in hosts], CONNECT_SECONDS + SSH_EXIT_SECONDS)
    return {
        host: "it no longer answers by ssh"
        for host, one in zip(hosts, results, strict=True)
        if one is None or one.returncode
    }


register(Ssh())
