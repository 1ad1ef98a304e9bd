"""The nodes of a Slurm allocation; srun starts programs in them."""

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
from hvscale.core.run_folder import RunRecord
from hvscale.launch.job import Node, Nodes
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import Placement, PlacementRequest, register
from hvscale.launch.rank_side import node_probe
from hvscale.launch.supervision import programs
from hvscale.launch.supervision.programs import call, require

COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
NODE_ADDRESS = re.compile(r"NodeAddr=(\S+)")
JOB = re.compile(r"[0-9]+(?:_[0-9]+)?")
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
                f"Slurm's controller does not answer ({error}): ask your administrators, or set SLURM_CONF"
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
                "--placement slurm: not inside an allocation; start it in one (`salloc -n N`), "
                "submit it with --submit, or write a job script with --sbatch FILE"
            )
        variable("SLURM_JOB_NODELIST")
        if sum(tasks_per_node()) < np:
            outside = ", or start hvscale outside `srun`" if "SLURM_STEP_ID" in os.environ else ""
            raise RequestError(
                f"-np {np}, but the allocation has {sum(tasks_per_node())} tasks: request more (`-n {np}`), or use fewer ranks"
                f"{outside}"
            )
        check_job_options(options, np)

    @contextmanager
    def prepare(self, request: PlacementRequest) -> Iterator[Nodes]:
        job = os.environ["SLURM_JOB_ID"]
        names = call(["scontrol", "show", "hostnames", variable("SLURM_JOB_NODELIST")]).split()
        used = [(name, count) for name, count in zip(names, ranks_per_node(request.np), strict=True) if count]
        found = probe_nodes(job, [name for name, _ in used])
        nodes = []
        for (name, count), seen in zip(used, found, strict=True):
            address = address_of(name)
            others = [one for one in seen["interfaces"] if not one.startswith("127.")]
            if address not in seen["interfaces"] and others:
                address = others[0]  # the node's name resolves to the loopback address there
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

    def recorded_nodes(self, record: RunRecord) -> Nodes:
        """The nodes in this process's allocation, or else in the run's own if it still exists."""
        names = [one.name for one in record.nodes]
        job = os.environ.get("SLURM_JOB_ID") or str(record.placement_settings.get("slurm_job"))
        if not JOB.fullmatch(job):
            raise RequestError(f"{job!r} is not the number of a Slurm job")
        nodes = tuple(
            Node(one.name, len(one.ranks), one.address, one.interface, agent(job, one.name)) for one in record.nodes
        )

        def lost() -> dict[str, str]:
            again = (
                "" if "SLURM_JOB_ID" in os.environ else f"; run the same command in an allocation of {','.join(names)}"
            )
            return {name: f"{why}{again}" for name, why in lost_nodes(job, names).items()}

        return Nodes(nodes, on_this_machine=False, lost=lost)


def variable(name: str) -> str:
    """A variable that Slurm sets in each allocation. Raises RequestError without it."""
    if name not in os.environ:
        raise RequestError(
            f"--placement slurm: SLURM_JOB_ID is set, but {name} is not: start it in an allocation (`salloc -n N`)"
        )
    return os.environ[name]


def tasks_per_node() -> list[int]:
    """The number of ranks that each node of the allocation can take, in Slurm's order.

    Inside a step, srun has replaced SLURM_TASKS_PER_NODE by that of the step, which may use fewer
    nodes.
    """
    tasks = counts(os.environ.get("SLURM_TASKS_PER_NODE") or variable("SLURM_JOB_CPUS_PER_NODE"))
    cpus = counts(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return cpus if len(cpus) > len(tasks) else tasks


def counts(text: str) -> list[int]:
    """The number for each node; Slurm writes "2(x3),1" for 2, 2, 2 and 1."""
    return [int(count) for count, times in COUNT.findall(text) for _ in range(int(times or 1))]


def ranks_per_node(np: int) -> list[int]:
    """The number of ranks on each node of the allocation; they fill one node after the other."""
    left, slots = np, []
    for tasks in tasks_per_node():
        slots.append(min(tasks, left))
        left -= slots[-1]
    return slots


def check_job_options(options: PlacementOptions, np: int) -> None:
    """Raises RequestError for options about a job that is to be requested: this is inside one."""
    here = f"this is inside allocation {os.environ['SLURM_JOB_ID']}"
    for option, value in (("--sbatch", options.sbatch), ("--sbatch-option", options.sbatch_option)):
        if value:
            raise RequestError(f"{option} is for a job that is still to be requested, and {here}: leave it out")
    used = sum(count > 0 for count in ranks_per_node(np))
    if options.nodes not in (None, used):
        raise RequestError(
            f"--nodes {options.nodes}: {here}, of which -np {np} uses {used}: leave it out, or request the nodes with salloc"
        )


def agent(job: str, node: str) -> tuple[str, ...]:
    # The job's environment is an explicit list, so srun's own variables are added here.
    configuration = os.environ.get("SLURM_CONF")
    return (
        *(("env", f"SLURM_CONF={configuration}") if configuration else ()),
        *("srun", f"--jobid={job}", "--overlap", "--mpi=none", "--cpu-bind=none", "--mem=0", "--export=ALL"),
        *("--nodes=1", "--ntasks=1", f"--nodelist={node}"),
    )


def probe_nodes(job: str, nodes: list[str]) -> list[dict[str, Any]]:
    """What the ranks will find in each node.

    Raises RequestError, with srun's message, if nothing can be started there.
    """
    probe = [sys.executable, "-I", "-S", node_probe.__file__]
    results = programs.ask_all([[*agent(job, node), *probe] for node in nodes], programs.answer_seconds())
    return [read_probe(node, one) for node, one in zip(nodes, results, strict=True)]


def read_probe(node: str, result: "subprocess.CompletedProcess[str] | None") -> dict[str, Any]:
    if result is None:
        raise RequestError(
            f"srun has started nothing on {node} within {programs.answer_seconds():g} s: check the node's state with "
            f"`sinfo`, or allow more time with {programs.ANSWER_VARIABLE}=SECONDS"
        )
    if result.returncode:
        raise RequestError(f"srun cannot start {sys.executable} on {node}: {message_of(result)}")
    try:
        found: dict[str, Any] = json.loads(result.stdout)
    except ValueError as error:
        raise RequestError(f"{sys.executable} ran on {node}, but its answer was lost: start the job again") from error
    return found


def message_of(result: "subprocess.CompletedProcess[str]") -> str:
    """srun's first error."""
    lines = [line for line in result.stderr.splitlines() if line.strip()] or [f"status {result.returncode}"]
    # Lines before the first error are information; later ones follow from it.
    return next((line.partition("error: ")[2] for line in lines if "error: " in line), lines[-1]).strip()


def address_of(node: str) -> str:
    """The node's address. Raises RequestError if Slurm does not know it or it cannot be
    resolved.
    """
    match = NODE_ADDRESS.search(call(["scontrol", "show", "node", node]))
    name = match[1] if match else node
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise RequestError(
            f"Slurm's node {node} has the address {name}, which cannot be resolved: {error.strerror}"
        ) from error


def own_address_towards(address: str) -> str:
    """This machine's source address for packets to `address`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((address, ANY_PORT))
        return str(asking.getsockname()[0])


def lost_nodes(job: str, nodes: list[str]) -> dict[str, str]:
    """The nodes that are down; without any, all if the allocation has ended, or those that start
    nothing.

    Slurm reports a node as down only after its SlurmdTimeout, by default 300 s, and then ends the
    allocation, unless it was made with --no-kill.
    """
    jobs = ["squeue", "--noheader", "--job", job, "--format", "%T"]
    states = ["sinfo", "--noheader", "--Node", "--nodes", ",".join(nodes), "--format", "%N %T"]
    job_state, node_states = programs.run_all([jobs, states], STATE_SECONDS)
    if job_state is None or node_states is None:
        return {}  # Slurm does not answer: no loss is known
    state = job_state.stdout.strip().lower() or "gone"
    has_ended = state not in ("running", "configuring")
    seen = dict(line.split()[:2] for line in node_states.stdout.splitlines() if len(line.split()) > 1)
    # An asterisk: the node does not answer.
    down = {
        name: f"Slurm reports it as {seen[name]}" + (f", and the allocation {job} is {state}" if has_ended else "")
        for name in nodes
        if seen.get(name, "").startswith("down") or (has_ended and seen.get(name, "").endswith("*"))
    }
    if has_ended:
        return down or dict.fromkeys(nodes, f"the allocation {job} is {state}")
    return down or nodes_without_answer(job, nodes)


def nodes_without_answer(job: str, nodes: list[str]) -> dict[str, str]:
    """The nodes in which srun starts nothing, if it does in others."""
    # srun gives up on a dead node after 11 s.
    answers = programs.run_all([[*agent(job, node), "true"] for node in nodes], STATE_SECONDS)
    if not any(answer is not None and answer.returncode == 0 for answer in answers):
        return {}  # the fault may be Slurm's, not the nodes'
    found = {}
    for node, answer in zip(nodes, answers, strict=True):
        if answer is None:
            found[node] = "it no longer answers Slurm"
        elif answer.returncode:
            found[node] = f"Slurm can start nothing there ({message_of(answer)})"
    return found


register(Slurm())
