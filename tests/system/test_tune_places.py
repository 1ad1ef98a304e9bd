"""`hvscale tune` in containers, network namespaces and a Slurm cluster."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import YIELDS, Run, requested_env, requested_knobs, run_json
from tests.system.services import machine_state
from tests.system.test_slurm import run_in_allocation
from tests.system.test_tune import ALGORITHMS, STEPS

# No algorithm is faster than the default, so there are three trials and no proof.
WORDS = ("default=fast", "another=slow", *(f"{name}=slow" for name in sorted(ALGORITHMS)))
STUDY = ("--run", "study", "--knobs", "allreduce_algorithm", "--trials", "3", "--trial-seconds", "1", "--json")


def check(document: str, folder: Path, placement: str) -> None:
    study = json.loads(document)
    assert (study["state"], study["winner"], study["proof"]) == ("finished", {}, None)
    assert study["measured_by"] == "the steps that the command writes into steps.jsonl"
    default, *others = study["trials"]
    assert (default["settings"], default["state"]) == ({}, "measured")
    assert len(others) == 2
    for trial in study["trials"]:
        assert trial["state"] in ("measured", "stopped early")
        record = run_json(folder / trial["run"])
        assert (record["placement"], requested_knobs(record), record["state"]) == (
            placement,
            trial["settings"],
            "stopped",
        )


@pytest.mark.parametrize("placement", ["docker:rank", "netns"])
def test_a_study_on_emulated_nodes(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    hvscale: Run,
    program: Callable[[str], Path],
    tmp_path: Path,
    placement: str,
) -> None:
    if placement == "netns":
        request.getfixturevalue("namespaces")
    else:
        monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue("docker_host"))
    request.getfixturevalue("machine_unchanged")
    done = hvscale("tune", "-np", 2, "--placement", placement, *STUDY, "--", "python", program(STEPS), *WORDS)
    assert done.returncode == 0, done.stderr
    check(done.stdout, tmp_path / "study", placement)


def test_a_study_inside_a_slurm_allocation(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[str], Path], tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm))
    command = ("tune", "-np", 2, "--placement", "slurm", *STUDY, "--", "python", program(STEPS), *WORDS)
    done = run_in_allocation(2, *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(done.stdout, tmp_path / "study", "slurm")
    assert machine_state(None, tmp_path)["processes"] == []


@pytest.mark.usefixtures("namespaces", "machine_unchanged")
def test_a_study_of_collectives_between_nodes_tries_another_eager_limit(hvscale: Run, tmp_path: Path) -> None:
    place = ("-np", "2", "--placement", "netns", "--nodes", "2", "--link", "1gbit", *YIELDS)
    # Open MPI has the fewest algorithms for gather.
    study = ("--ops", "gather", "-b", "256K", "-e", "256K", "--run", "study", "--json")
    done = hvscale("tune-collectives", *place, *study)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["eager_limits"] == [None, 1 << 20]
    assert {row["eager_limit_bytes"] for row in document["decision"]["eager_limits"]} == {None, 1 << 20}
    assert {point["ranks_per_node"] for point in document["measurements"]["points"]} == {1}
    limits = {
        requested_env(run_json(tmp_path / "study" / job["run"])).get("OMPI_MCA_btl_tcp_eager_limit")
        for job in document["jobs"]
        if not job["confirmation"]
    }
    assert limits == {None, str(1 << 20)}
