"""The nodes of a Slurm allocation: programs are started in them by srun."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hvscale.core.errors import RequestError
from hvscale.launch.job import Node, Nodes
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import Placement, PlacementRequest, register
from hvscale.launch.rank_side import node_probe
from hvscale.launch.supervision import programs
from hvscale.launch.supervision.programs import call, require

# "2(x3),1": two tasks on each of three nodes, one on the fourth.
TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
NODE_ADDRESS = re.compile(r"NodeAddr=(\S+)")
STATE_SECONDS = 15.0
ANY_PORT = 9  # nothing is sent to it


class Slurm(Placement):
    name = "slurm"
    help = "the nodes of a Slurm allocation"
    on_this_machine = False
    implied_by = frozenset({"sbatch", "submit"})
    takes = frozenset({"nodes", "sbatch", "submit", "sbatch_option"})

    def readiness(self) -> str:
        require("srun", "slurm-client", "--placement slurm")
        try:
            nodes = call(["sinfo", "--noheader", "--format", "%D"]).split()
        except RequestError as error:
            raise RequestError(
                f"Slurm's controller does not answer ({error}): ask your site, or set SLURM_CONF"
            ) from error
        where = (
            f"inside allocation {os.environ['SLURM_JOB_ID']}"
            if "SLURM_JOB_ID" in os.environ
            else "outside an allocation"
        )
        return f"{call(['srun', '--version']).strip()}, {sum(map(int, nodes))} nodes, {where}"

    def check(self, options: PlacementOptions, np: int) -> None:
        require("srun", "slurm-client", "--placement slurm")
        if "SLURM_JOB_ID" not in os.environ:
            raise RequestError(
                "--placement slurm: this is not inside an allocation; start it from one (`salloc -n N`), "
                "or let it be submitted with --submit, or write the job's script with --sbatch FILE"
            )
        if sum(tasks_per_node()) < np:
            raise RequestError(
                f"-np {np}, but the allocation has {sum(tasks_per_node())} tasks: ask Slurm for more (`-n {np}`), or for fewer ranks"
            )

    @contextmanager
    def prepare(self, request: PlacementRequest) -> Iterator[Nodes]:
        job = os.environ["SLURM_JOB_ID"]
        names = call(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]).split()
        left, slots = request.np, []
        for tasks in tasks_per_node():
            slots.append(min(tasks, left))
            left -= slots[-1]
        used = [(name, count) for name, count in zip(names, slots, strict=True) if count]
        found = probe_nodes(job, [name for name, _ in used])
        nodes = []
        for (name, count), seen in zip(used, found, strict=True):
            address = address_of(name)
            others = [one for one in seen["interfaces"] if not one.startswith("127.")]
            if address not in seen["interfaces"] and others:
                address = others[0]  # a name that means the loopback address on its own host
            nodes.append(
                Node(
                    name=name,
                    slots=count,
                    address=address,
                    interface=seen["interfaces"].get(address, ""),
                    agent=agent(job, name),
                )
            )
        yield Nodes(
            tuple(nodes),
            controller=own_address_towards(nodes[-1].address),
            on_this_machine={node.address for node in nodes} <= node_probe.interfaces().keys(),
            settings={"slurm_job": job, "nodes": ",".join(name for name, _ in used)},
            single_copy=lambda: all(seen["cma"] for seen in found),
            lost=lambda: lost_nodes(job, [node.name for node in nodes]),
        )


def tasks_per_node() -> list[int]:
    """How many ranks each node of the allocation takes, in Slurm's order."""
    text = os.environ.get("SLURM_TASKS_PER_NODE") or os.environ["SLURM_JOB_CPUS_PER_NODE"]
    return [int(tasks) for tasks, times in TASKS.findall(text) for _ in range(int(times or 1))]


def agent(job: str, node: str) -> tuple[str, ...]:
    # The job's environment is an explicit list: what srun needs of the caller's is given to it
    # here.
    configuration = os.environ.get("SLURM_CONF")
    return (
        *(("env", f"SLURM_CONF={configuration}") if configuration else ()),
        *("srun", f"--jobid={job}", "--overlap", "--mpi=none", "--cpu-bind=none", "--mem=0", "--export=ALL"),
        *("--nodes=1", "--ntasks=1", f"--nodelist={node}"),
    )


def probe_nodes(job: str, nodes: list[str]) -> list[dict[str, Any]]:
    """What the ranks will find in each node. Raises RequestError, in srun's own words, when nothing
    can be started there.
    """
    probe = [sys.executable, "-I", "-S", node_probe.__file__]
    asked = programs.run_all([[*agent(job, node), *probe] for node in nodes], programs.answer_seconds())
    return [read_probe(node, one) for node, one in zip(nodes, asked, strict=True)]


def read_probe(node: str, asked: "subprocess.CompletedProcess[str] | None") -> dict[str, Any]:
    if asked is None:
        raise RequestError(
            f"srun has started nothing on {node} within {programs.answer_seconds():g} s: look at the node's state with "
            f"`sinfo`, or give it longer with {programs.ANSWER_VARIABLE}=SECONDS"
        )
    if asked.returncode:
        lines = [line for line in asked.stderr.splitlines() if line.strip()] or [f"status {asked.returncode}"]
        # Lines before it are information; lines after it follow from the first error.
        said = next((line.partition("error: ")[2] for line in lines if "error: " in line), lines[-1])
        raise RequestError(f"srun cannot start {sys.executable} on {node}: {said.strip()}")
    found: dict[str, Any] = json.loads(asked.stdout)
    return found


def address_of(node: str) -> str:
    """Raises RequestError when Slurm does not know the node, or its name has no address."""
    match = NODE_ADDRESS.search(call(["scontrol", "show", "node", node]))
    name = match[1] if match else node
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise RequestError(
            f"Slurm's node {node} has the address {name}, which cannot be resolved: {error.strerror}"
        ) from error


def own_address_towards(address: str) -> str:
    """The address of this machine that a packet to `address` would carry."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((address, ANY_PORT))
        return str(asking.getsockname()[0])


def lost_nodes(job: str, nodes: list[str]) -> dict[str, str]:
    """All nodes, when the allocation is no more; otherwise those that Slurm counts as down."""
    jobs = ["squeue", "--noheader", "--job", job, "--format", "%T"]
    states = ["sinfo", "--noheader", "--Node", "--nodes", ",".join(nodes), "--format", "%n %T"]
    job_state, node_states = programs.run_all([jobs, states], STATE_SECONDS)
    if job_state is None or node_states is None:
        return {}  # Slurm does not answer: it knows of no loss
    if job_state.stdout.strip() not in ("RUNNING", "CONFIGURING"):
        state = job_state.stdout.strip().lower() or "gone"
        return dict.fromkeys(nodes, f"the allocation {job} is {state}")
    seen = dict(line.split()[:2] for line in node_states.stdout.splitlines() if len(line.split()) > 1)
    return {
        name: f"Slurm reports it as {state}"
        for name, state in seen.items()
        if state.startswith("down") and name in nodes
    }


register(Slurm())
