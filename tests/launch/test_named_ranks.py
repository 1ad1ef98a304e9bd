"""Which ranks a failed job names: those of lost nodes, or the one that failed first."""

from pathlib import Path
from typing import Any

import pytest

from hvscale.core.run_folder import RankEnd, RunFolder
from hvscale.launch.job import Job, Node, Nodes
from hvscale.launch.supervision.outcome import Failure, describe_lost, first_cause


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


def test_a_failure_names_the_log_that_has_lines(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    failure = Failure(1, "rank 1 on a ended with status 7", run.log(1))
    assert str(failure.error(run)) == "rank 1 on a ended with status 7; it wrote nothing"
    for log, line in ((run.logs / "launcher.log", "aborted"), (run.log(1), "out of data")):
        log.write_text(line + "\n")
        error = failure.error(run)
        # Studies show and keep the message alone, so it must be whole without the lines.
        assert str(error) == f"rank 1 on a ended with status 7; see {log}"
        assert error.last_lines == [line]


SHUT_DOWN = "HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks or"


@pytest.mark.parametrize(
    ("command", "first", "second", "log", "blamed"),
    [
        # Status 3 of hvscale's own command: a rank failed.
        ("/bin/hvscale", {"exit_status": 3}, {"exit_status": 1}, "", 1),
        ("/bin/hvscale", {"exit_status": 3}, {"signal": "SIGKILL"}, "", 1),
        ("/bin/hvscale", {"exit_status": 3}, {"exit_status": 3}, "", 0),
        ("/bin/hvscale", {"exit_status": 3}, {"signal": "SIGTERM"}, "", 0),
        ("/bin/hvscale", {"exit_status": 2}, {"exit_status": 1}, "", 0),
        ("python", {"exit_status": 3}, {"exit_status": 1}, "ValueError: no", 0),
        ("python", {"exit_status": 1}, {"exit_status": 1}, SHUT_DOWN, 1),
        ("python", {"exit_status": 1}, {"signal": "SIGTERM"}, SHUT_DOWN, 0),
        ("python", {"signal": "SIGTERM"}, {"exit_status": 1}, "", 0),
        ("python", {"exit_status": 0}, {"exit_status": 1}, SHUT_DOWN, 1),
    ],
)
def test_a_rank_that_ended_because_another_one_failed_is_not_to_blame(
    tmp_path: Path, command: str, first: dict[str, Any], second: dict[str, Any], log: str, blamed: int
) -> None:
    """`log`: of the rank that ended first. In Open MPI, SIGTERM comes from the launcher."""
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    run.log(0).write_text(f"step 1\n{log} allreduce\n")
    run.log(1).write_text("step 1\nKeyError: 'a fault'\n")
    ranks = [
        RankEnd(rank=rank, host="a", pid=1, ended_at=1.0 + rank, **end) for rank, end in enumerate((first, second))
    ]
    found = first_cause([command, "train"], ranks, run)
    assert found is not None
    assert found.rank == blamed
