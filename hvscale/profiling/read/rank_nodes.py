"""Finds out on which node each rank of a run was."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import RunFolder, RunRecord
from hvscale.profiling.read.profile_file import read_header

UNKNOWN_NODE = "unknown node"


def node_of_each_rank(run: RunFolder, record: RunRecord) -> dict[int, str]:
    """The node of every rank of the job, by rank.

    A placement that makes its own nodes names them in run.json. Otherwise a rank's profile names
    its host, and run.json does so for a rank without a profile.
    """
    found = dict.fromkeys(range(record.np), UNKNOWN_NODE)
    found |= {end.rank: end.host for end in record.ranks if end.host}
    for path in sorted(run.hvprof.glob("rank-*.hvp")):
        with suppress(OSError, RequestError):
            header = _header(path)
            found[header.rank] = header.host or found.get(header.rank, UNKNOWN_NODE)
    return found | {rank: node.name for node in record.nodes for rank in node.ranks}


def _header(path: Path) -> Any:
    with open_regular(path) as stream:
        return read_header(path, stream)


def local_ranks(nodes: dict[int, str]) -> dict[int, int]:
    """The place of each rank among the ranks of its node, in ascending order from 0."""
    counted: dict[str, int] = {}
    found = {}
    for rank in sorted(nodes):
        found[rank] = counted.get(nodes[rank], 0)
        counted[nodes[rank]] = found[rank] + 1
    return found
