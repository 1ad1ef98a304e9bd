"""Profiles on the disks of a job's nodes: prepared before its start, collected after its end."""

import json
import re
import secrets
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.progress import DownloadColumn

from hvscale.core.errors import RequestError
from hvscale.core.folder_lock import FolderLock
from hvscale.core.run_folder import OPEN_STATES, RUNS, RunFolder, RunRecord, ranks_in_words
from hvscale.core.units import MIB
from hvscale.launch import placements
from hvscale.launch.cleanup.leftovers import runs_with_containers
from hvscale.launch.job import Node, Nodes
from hvscale.launch.node_programs import NodeProgram, run_on_nodes
from hvscale.profiling.read.missing_profiles import STAYED
from hvscale.profiling.record.rank_side import node_folder
from hvscale.profiling.record.space import Disk, ring_environment, smallest_profile_bytes
from hvscale.report.progress import ProgressBar

NODES_NAMED = 4  # in one sentence
LONGEST_NAME = 100  # characters of the run's name
COLLECTED = "the profiles stayed on the nodes, and `hvscale cleanup` collected them"
NAME = re.compile(r"[A-Za-z0-9_]\S*")  # of a node: no option of the program that starts others there


@dataclass
class NodeLocalProfiles:
    """The profiles of one run in a private sub-folder of `parent` on each node (`--record-dir`).

    `environment`: the job's. `prepared`: the nodes that have the sub-folder.
    """

    parent: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    prepared: set[str] = field(default_factory=set)

    def prepare(self, run: RunFolder, record: RunRecord, nodes: Nodes) -> dict[str, str]:
        """Create the sub-folder on each node; return the variables that make the ranks use it.

        Raises RequestError if a node does not have the folder, or no space in it.
        """
        self.folder = self.parent / f"{run.path.name[:LONGEST_NAME]}-{secrets.token_hex(4)}"
        started = [program(node, "prepare", self.folder) for node in nodes.nodes]
        run_on_nodes(started)
        self.prepared = {one.node.name for one in started if one.status == 0}
        failed = [(one, why) for one in started if (why := one.problem or unreadable(one))]
        if failed:
            (ranks, names), why = grouped(nodes, failed)[0]
            raise RequestError(
                f"--record-dir {self.parent}: {why}, on {names} ({ranks}): choose a folder that every node has"
            )
        disks = disks_of(nodes, [(one.node, answer(one)) for one in started])
        for disk in disks:
            needed = disk.ranks * smallest_profile_bytes(record, self.environment)
            if disk.free_bytes < needed:
                raise RequestError(
                    f"--record-dir {self.parent}: {disk.name} has {disk.free_bytes / MIB:.1f} MiB left, and the profiles need at "
                    f"least {needed / MIB:.1f} MiB: choose another folder, or make room"
                )
        return {"HVPROF_DIRECTORY": str(self.folder), **ring_environment(record, self.environment, disks)}

    def collect(self, run: RunFolder, record: RunRecord, nodes: Nodes) -> list[str]:
        """Move the profiles into the run folder; return a line about those that stay."""
        lost = {} if record.state in ("finished", "stopped") else nodes.lost()
        return self._collect(run, nodes, lost, "collect")

    def rescue(self, run: RunFolder, nodes: Nodes, lost: dict[str, str]) -> list[str]:
        """As `collect`, after the job's controller was killed. `lost`: as `Nodes.lost` returns."""
        return self._collect(run, nodes, lost, "rescue")

    def _collect(self, run: RunFolder, nodes: Nodes, lost: dict[str, str], task: str) -> list[str]:
        if self.folder is None:
            return []
        asked = []
        for node in nodes.nodes:
            ranks = nodes.ranks_of(node.name)
            if node.name not in lost:
                asked.append(program(node, task, self.folder, run.hvprof.absolute(), ranks[0], ranks[-1]))
        with ProgressBar(None, DownloadColumn(), description="collecting profiles") as bar:
            run_on_nodes(asked, lambda: show(bar, asked))
        failed = [(NodeProgram(node, []), lost[node.name]) for node in nodes.nodes if node.name in lost]
        failed += [(one, why) for one in asked if (why := one.problem)]
        failed = [(one, why) for one, why in failed if one.node.name in self.prepared]
        return [
            f"{STAYED} {ranks} stayed on {names} in {self.folder}: {why}"
            for (ranks, names), why in grouped(nodes, failed)
        ]


def uncollected(run: RunFolder, record: RunRecord) -> Path | None:
    """The private folder on the nodes with profiles that were not collected; None without any.

    Raises RequestError if run.json does not name a folder that `prepare` makes.
    """
    folder, parent = record.rank_environment.get("HVPROF_DIRECTORY"), str(record.launch.get("record_dir") or "")
    stayed = any(text.startswith(STAYED) for text in record.warnings)
    if not parent or not folder or COLLECTED in record.warnings or not (record.was_abandoned or stayed):
        return None
    own = re.fullmatch(rf"{re.escape(run.path.absolute().name[:LONGEST_NAME])}-[0-9a-f]{{8}}", Path(folder).name)
    names = [node.name for node in record.nodes]
    if Path(folder).parent != Path(record.working_directory, parent) or not own or not all(map(NAME.fullmatch, names)):
        raise RequestError(f"{run.run_json} is damaged: {folder} is not a folder of this run")
    return Path(folder)


def stayed_in(run: RunFolder) -> Path | None:
    """As `uncollected`. Raises RequestError also for a run that is running or unreadable."""
    record = run.read()
    if record.state in OPEN_STATES:
        raise RequestError(
            f"{run.path} is {record.state} on {record.host.name}: wait for its end; if it was killed, "
            "run this command there"
        )
    return uncollected(run, record)


def rescue(run: RunFolder) -> list[str]:
    """Collect the profiles of a run that stayed on its nodes; return a line about those that stay.

    Raises RequestError if the run's folder is not this user's, or another process has it.
    """
    abandoned = run.read().was_abandoned
    lock = FolderLock(run.path)
    try:
        record = run.read()
        record.state = "interrupted" if abandoned else record.state  # it cannot be seen from under the own lock
        folder = uncollected(run, record)
        if folder is None:
            return []
        place = placements.find(record.placement)
        nodes = place.recorded_nodes(record)
        lost = nodes.lost()
        if place.on_this_machine and folder.is_dir():  # a container's folder may be one of this machine
            there = tuple(
                replace(node, agent=(), through_shell=False) if node.name in lost else node for node in nodes.nodes
            )
            nodes, lost = replace(nodes, nodes=there), {}
        profiles = NodeLocalProfiles(folder.parent, folder=folder, prepared={node.name for node in nodes.nodes})
        found = profiles.rescue(run, nodes, lost)
        others = [text for text in record.warnings if not text.startswith(STAYED)]
        record.warnings = [*others, *(found or [COLLECTED])]
        run.write(record)
        return found
    except OSError as error:
        raise RequestError(f"{run.path} cannot be written: {error.strerror}") from error
    finally:
        lock.close()


def killed_runs() -> list[RunFolder]:
    """The runs below runs/, and those that left containers, whose profiles stayed on the nodes."""
    paths = {path.parent.absolute() for path in RUNS.glob("*/run.json")}
    found = []
    for path in sorted(paths.union(map(Path, runs_with_containers()))):
        with suppress(RequestError):
            run = RunFolder.open(path)
            if uncollected(run, run.read()) is not None:
                found.append(run)
    return found


def program(node: Node, *words: object) -> NodeProgram:
    """`node_folder.py` with these arguments."""
    return NodeProgram(node, [sys.executable, "-I", "-S", node_folder.__file__, *map(str, words)])


def answer(one: NodeProgram) -> dict[str, Any]:
    """The last line that a program has written, as JSON; {} without one."""
    lines = [line for line in one.stdout.splitlines() if line.startswith("{") and line.endswith("}")]
    try:
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:  # the line is still being written
        return {}
    return found


def unreadable(one: NodeProgram) -> str | None:
    """Why the answer of a prepared node cannot be used."""
    return None if {"free_bytes", "filesystem"} <= answer(one).keys() else "its answer is not readable"


def show(bar: ProgressBar, asked: Sequence[NodeProgram]) -> None:
    answers = [answer(one) for one in asked]
    total, done = (sum(one.get(name, 0) for one in answers) for name in ("all", "done"))
    bar.update(total=total or None, completed=done)


def disks_of(nodes: Nodes, answers: Sequence[tuple[Node, dict[str, Any]]]) -> list[Disk]:
    """The disks behind the folder, each with the ranks of all nodes that share it."""
    sharing: defaultdict[str, list[tuple[Node, int]]] = defaultdict(list)
    for node, found in answers:
        sharing[found["filesystem"]].append((node, found["free_bytes"]))
    disks = []
    for users in sharing.values():
        names = names_of([node.name for node, _ in users])
        ranks = [rank for node, _ in users for rank in nodes.ranks_of(node.name)]
        disks.append(Disk(f"{names} ({ranks_in_words(ranks)})", users[0][1], len(ranks)))
    return disks


def grouped(nodes: Nodes, failed: Sequence[tuple[NodeProgram, str]]) -> list[tuple[tuple[str, str], str]]:
    """The ranks and nodes of each problem, in words."""
    by_problem: defaultdict[str, list[NodeProgram]] = defaultdict(list)
    for one, why in failed:
        by_problem[why].append(one)
    found = []
    for why, programs in by_problem.items():
        ranks = sorted(rank for one in programs for rank in answer(one).get("left") or nodes.ranks_of(one.node.name))
        found.append(((ranks_in_words(ranks), names_of([one.node.name for one in programs])), why))
    return found


def names_of(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NODES_NAMED])
    more = f" and {len(names) - NODES_NAMED} more" if len(names) > NODES_NAMED else ""
    return f"node{'s' if len(names) > 1 else ''} {shown}{more}"
