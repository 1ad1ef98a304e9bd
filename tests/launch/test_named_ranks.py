"""Which ranks a failed job names: those of lost nodes, or the one that failed first."""

from pathlib import Path
from typing import Any

import pytest

from hvscale.core.run_folder import RankEnd
from hvscale.launch.job import Job, Node, Nodes
from hvscale.launch.supervision.outcome import describe_lost, first_failed, those_to_blame


@pytest.mark.parametrize(
    ("lost", "rank", "what"),
    [
        ({"n1": "off"}, 2, "ranks 2-3 on n1 are lost: off"),
        ({"n2": "off", "n1": "gone"}, 4, "ranks 4-5 on n2 are lost: off"),
        ({"n0": "off", "n3": "off"}, 0, "ranks 0-1, 6-7 on n0, n3 are lost: off"),
        ({f"n{node}": "off" for node in range(6)}, 0, "ranks 0-11 on n0, n1, n2, n3 and 2 more are lost: off"),
    ],
)
def test_lost_nodes_are_named_with_their_ranks(lost: dict[str, str], rank: int, what: str) -> None:
    nodes = Nodes(tuple(Node(name=f"n{number}", slots=2, address="", interface="") for number in range(6)))
    failure = describe_lost(Job(12, ["true"], Path("run"), {}, nodes, {}), lost)
    assert (failure.rank, failure.what, failure.exit_status) == (rank, what, 3)


def test_a_single_lost_rank_is_singular() -> None:
    nodes = Nodes(
        (Node(name="a", slots=1, address="", interface=""), Node(name="b", slots=1, address="", interface=""))
    )
    assert describe_lost(Job(2, ["true"], Path("run"), {}, nodes, {}), {"b": "off"}).what == "rank 1 on b is lost: off"


@pytest.mark.parametrize(
    ("command", "other", "blamed"),
    [
        (["/bin/hvscale", "train"], {"exit_status": 1}, 1),
        (["/bin/hvscale", "train"], {"signal": "SIGKILL"}, 1),
        (["/bin/hvscale", "train"], {"exit_status": 3}, 0),
        (["/bin/hvscale", "train"], {"signal": "SIGTERM"}, 0),  # by the launcher, after rank 0's end
        (["train.py"], {"exit_status": 1}, 0),
    ],
)
def test_a_rank_that_ended_because_another_one_failed_is_not_to_blame(
    command: list[str], other: dict[str, Any], blamed: int
) -> None:
    """Status 3 of hvscale's own command: a rank failed."""
    ranks = [
        RankEnd(rank=0, host="a", pid=1, exit_status=3, ended_at=1.0),
        RankEnd(rank=1, host="a", pid=2, ended_at=2.0, **other),
    ]
    first = first_failed(those_to_blame(command, ranks))
    assert first is not None
    assert first.rank == blamed
