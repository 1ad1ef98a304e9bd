"""A job, the nodes that its ranks run on, and how a program is started in a node."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hvscale.core.errors import RequestError
from hvscale.core.files import open_new
from hvscale.core.host import single_copy_problem
from hvscale.launch.rank_side import remote_start

LOOPBACK = "127.0.0.1"
STATUS_OF_SSH_ITSELF = 255


class RemoteProcess(subprocess.Popen[bytes]):
    """An agent whose program runs in another node; signals sent to it reach that program.

    The agent gets each signal's number on its stdin.
    """

    def send_signal(self, sig: int) -> None:
        """Send a signal; does nothing if the program has ended."""
        with suppress(OSError):
            if self.stdin is not None:
                self.stdin.write(b"%d\n" % sig)
                self.stdin.flush()


@dataclass(frozen=True)
class Node:
    """A place for `slots` ranks: this machine, a container, a network namespace or another host.

    `agent`: the words before a program's own that start it there; empty for this machine.
    `through_shell`: the agent passes one string to a shell, as ssh does.
    """

    name: str
    slots: int
    address: str = LOOPBACK
    interface: str = "lo"
    agent: tuple[str, ...] = ()
    through_shell: bool = False

    def agent_command(self, program: list[str]) -> list[str]:
        """The argument list that runs `program` in this node."""
        return [*self.agent, *([shlex.join(program)] if self.through_shell else program)]

    def start(self, program: list[str], environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start `program` in the caller's working directory with exactly this environment.

        stdout and stderr go to `log`. Signals sent to the process reach the program.
        """
        if not self.agent:
            return subprocess.Popen(
                program,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        starter = [sys.executable, "-I", "-S", remote_start.__file__]
        process = RemoteProcess(
            self.agent_command(starter), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
        # Through stdin, because every user of the machine can read command lines.
        order = json.dumps({"program": program, "environment": dict(environment), "directory": str(Path.cwd())})
        with suppress(OSError):  # an agent that could not start says so in its exit status
            if process.stdin is not None:
                process.stdin.write(order.encode() + b"\n")
                process.stdin.flush()
        return process


@dataclass(frozen=True)
class Nodes:
    """The nodes of a job, in order of rank: each node holds a block of consecutive ranks.

    `controller`: an address of this machine that every node can reach. `subnet` (CIDR): the network
    for the ranks' messages; None lets the library choose. `settings`: the placement's own settings,
    for run.json. `excluded_variables`: the caller's variables that do not apply in the nodes.
    `single_copy()`: whether ranks of a node may read each other's memory. `lost()`: the cause of
    each node's loss, by node name.
    """

    nodes: tuple[Node, ...]
    controller: str = LOOPBACK
    subnet: str | None = None
    on_this_machine: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    excluded_variables: tuple[str, ...] = ()
    single_copy: Callable[[], bool] = lambda: not single_copy_problem()
    lost: Callable[[], dict[str, str]] = dict

    @property
    def without_agents(self) -> bool:
        """Whether the ranks are plain processes of this machine."""
        return not any(node.agent for node in self.nodes)

    @property
    def share_an_address(self) -> bool:
        """Whether several nodes are really one machine, as in a test cluster."""
        return len({node.address for node in self.nodes}) < len(self.nodes)

    @property
    def hosts(self) -> str:
        """`name:slots,name:slots`, the format that launchers take."""
        return ",".join(f"{node.name}:{node.slots}" for node in self.nodes)

    def ranks_of(self, name: str) -> list[int]:
        first = 0
        for node in self.nodes:
            if node.name == name:
                return list(range(first, first + node.slots))
            first += node.slots
        return []

    def node_of(self, rank: int) -> Node:
        return next(node for node in self.nodes if rank in self.ranks_of(node.name))

    def write_agent(self, folder: Path) -> Path:
        """Write a program that launchers call in place of ssh, and return its path.

        It takes `[-OPTION]... NODE COMMAND LINE` and runs the line in the node. Raises RequestError
        if the path contains a space or a colon, because launchers split the agent's name there.
        """
        path = folder / "agent"
        if len(str(path).split()) != 1 or ":" in str(path):
            raise RequestError(
                f"{folder}: launchers cannot start a program whose path contains a space or a colon; choose another folder with "
                "--run"
            )
        cases = "".join(f"{shlex.quote(node.name)}) {agent_words(node, folder)} ;;\n" for node in self.nodes)
        text = (
            "#!/bin/sh\n"
            "# Starts a command line in one of this run's nodes, in the place of ssh.\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            "node=$1; shift\n"
            f"case $node in\n{cases}esac\n"
            'echo "$node is not a node of this run" >&2; exit 255\n'
        )
        for node in self.nodes:  # left by a first start
            lost_marker(folder, node.name).unlink(missing_ok=True)
        with open_new(path, 0o700) as stream:
            stream.write(text.encode())
        return path


def agent_words(node: Node, run: Path) -> str:
    """The shell words that run the line in `$*` in the node; launchers write the line for a shell.

    If ssh loses its host, they create a marker file, because Hydra ignores its agents' exit status.
    """
    if not node.through_shell:
        return f'exec {shlex.join(node.agent)} /bin/sh -c "$*"'
    mark = shlex.quote(str(lost_marker(run, node.name)))
    return (
        f'{shlex.join(node.agent)} "$*"; status=$?; [ $status -ne {STATUS_OF_SSH_ITSELF} ] || : >{mark}; exit $status'
    )


def lost_marker(run: Path, node: str) -> Path:
    """The file that an agent creates when it has lost its node."""
    return run / "ranks" / f"{node}.lost"


def split_evenly(np: int, nodes: int) -> list[int]:
    """Ranks for each node: an even split, with the remainder on the first nodes."""
    return [np // nodes + (number < np % nodes) for number in range(nodes)]


@dataclass(frozen=True)
class Job:
    """np ranks of one command on `nodes`, which have np slots in total.

    `environment`: the whole environment of the launcher and of every rank. `rank_environment`:
    added for the user's command only, because a preloaded library must not load into mpirun or
    hvrank.
    """

    np: int
    command: list[str]
    run: Path
    environment: dict[str, str]
    nodes: Nodes
    rank_environment: dict[str, str] = field(default_factory=dict)
