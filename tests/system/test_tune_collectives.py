"""`hvscale tune-collectives`: real ranks, a job with the resulting table, and failures."""

import json
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvscale.comm_tuning.collectives.tables.table import CollectivesTable
from tests.conftest import (
    HANG_SECONDS,
    PROGRAMS,
    YIELDS,
    Run,
    needs_mpich,
    processes_below,
    requested_env,
    run_json,
    wait_until,
)

KIB = 1 << 10
STUDY = ("tune-collectives", "-np", "2", "-b", "4K", "-e", "16K", "--run", "study", *YIELDS)
BROADCASTS = """
import numpy as np
from mpi4py import MPI
for size in (2000, 300_000):
    for _ in range(5):
        MPI.COMM_WORLD.Bcast(np.ones(size, np.uint8))
"""
# Corrupts one byte of the library's broadcasts.
WRONG_BROADCASTS = """
#include <mpi.h>
int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    int status = PMPI_Bcast(buffer, count, type, root, comm);
    if (count > 1000)
        ((char *)buffer)[3] ^= 1;
    return status;
}
"""
# Kills rank 1 once, at the first all-reduce in the third communicator.
KILLS_RANK_1 = """
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    static MPI_Comm seen[64];
    static int known;
    int rank, number = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    while (number < known && seen[number] != comm)
        number++;
    if (number == known && count == 1024) {
        const char *died = getenv("DIED");
        if (known == 2 && rank == 1 && (died == NULL || open(died, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0))
            raise(SIGKILL);
        seen[known++] = comm;
    }
    return PMPI_Allreduce(send, receive, count, type, op, comm);
}
"""

# All-reduces but those of the first choice take a second longer as long as a file exists.
WAITS = """
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>
int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    static MPI_Comm first = MPI_COMM_NULL;
    if (count == 1024 && first == MPI_COMM_NULL)
        first = comm;
    if (count == 1024 && first != comm && access(getenv("WAIT"), F_OK) == 0)
        sleep(1);
    return PMPI_Allreduce(send, receive, count, type, op, comm);
}
"""


def compile_library(folder: Path, text: str) -> Path:
    """Compile the text and return the library to preload."""
    source, library = folder / "preloaded.c", folder / "libpreloaded.so"
    source.write_text(text)
    subprocess.run([PROGRAMS / "mpicc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def document_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tune-collectives.json").read_text())
    return found


def choices_in(document: dict[str, Any], operation: str) -> set[str]:
    """Return the measured algorithms, for example `chain` or `library's ring`."""
    points = [point for point in document["measurements"]["points"] if point["operation"] == operation]
    return {
        f"library's {point['choice']['library_algorithm']}"
        if "library_algorithm" in point["choice"]
        else point["choice"]["algorithm"]
        for point in points
    }


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Return a function that starts a study; the fixture kills it at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> "subprocess.Popen[str]":
        command = [str(PROGRAMS / "hvscale"), *STUDY, "--ops", "broadcast", *more]
        started.append(
            subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def has_reported(tmp_path: Path, what: str) -> bool:
    return any(what in path.read_text() for path in (tmp_path / "study").glob("*/collectives.jsonl"))


def test_an_interrupted_study_keeps_its_measurements_and_a_job_uses_its_table(
    study: Callable[..., "subprocess.Popen[str]"], hvscale: Run, tmp_path: Path
) -> None:
    process = study("-e", "64M")
    wait_until(lambda: has_reported(tmp_path, '"sample"'))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signal.SIGINT, stderr
    assert "Traceback" not in stderr
    interrupted = document_in(tmp_path / "study")
    assert interrupted["state"] == "interrupted"
    assert interrupted["measurements"]["points"]
    assert processes_below(tmp_path) == []

    done = hvscale(
        *STUDY, "--ops", "broadcast,allreduce,allgather,gather", "--json", "--csv", "rows.csv", timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == document_in(tmp_path / "study")
    later = {key(point): point["seconds"] for point in document["measurements"]["points"]}
    for point in interrupted["measurements"]["points"]:
        assert later[key(point)][: len(point["seconds"])] == point["seconds"]
    assert (document["schema"], document["state"]) == ("hvscale/tune-collectives/2", "finished")
    assert document["library"].startswith("Open MPI")
    assert {"library", "chain", "two-level", "library's pipeline", "library's auto"} <= choices_in(
        document, "broadcast"
    )
    assert {"library", "library's ring", "library's recursive_doubling"} <= choices_in(document, "allreduce")
    assert {"library", "library's bruck", "library's two_ranks"} <= choices_in(document, "allgather")
    assert {"library", "library's binomial"} <= choices_in(document, "gather")
    assert all(not point["wrong"] and point["ranks_per_node"] == 2 for point in document["measurements"]["points"])
    base = {
        (point["operation"], point["bytes"]): point["seconds"]
        for point in document["measurements"]["points"]
        if point["choice"] == {"algorithm": "library"} and point["bytes"] <= 16 * KIB
    }
    assert {4 * KIB, 16 * KIB} <= {size for operation, size in base if operation == "broadcast"}
    assert all(len(seconds) > 1 for seconds in base.values())
    assert (tmp_path / "rows.csv").read_text().startswith("operation,np,ranks_per_node,bytes")
    assert "Algorithm by message size" in (tmp_path / "study" / "tune-collectives.html").read_text()
    table = tmp_path / "study" / "collectives.toml"
    CollectivesTable.model_validate(tomllib.loads(table.read_text()))
    job = hvscale("launch", "-np", "2", "--collectives", table, "--", "python", "-c", BROADCASTS)
    assert job.returncode == 0, job.stderr
    # The study is finished, so no job starts again.
    jobs = len(document["jobs"])
    again = hvscale(*STUDY, "--ops", "broadcast,allreduce,allgather,gather")
    assert again.returncode == 0, again.stderr
    assert len(document_in(tmp_path / "study")["jobs"]) == jobs
    for words in ("By size", "study folder", "table:"):
        assert words in again.stdout + again.stderr


@needs_mpich
def test_mpich_over_ucx_has_no_eager_limit(hvscale: Run) -> None:
    done = hvscale("tune-collectives", "-np", 2, "--mpi", "mpich", "--transport", "ucx", "--eager-limits", "64K")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "the eager limit of mpich cannot be set here" in done.stderr
    done = hvscale("tune-collectives", "-np", 2, "--mpi", "mpich", "--eager-limits", "64K")
    assert done.returncode == 2
    assert "the eager limit of mpich cannot be set here" in done.stderr


@needs_mpich
def test_a_study_over_mpich(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale(*STUDY, "--mpi", "mpich", "-e", "4K", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {"library", "chain", "library's binomial", "library's pipelined_tree"} <= choices_in(document, "broadcast")
    assert {"library", "library's ring", "library's recursive_doubling"} <= choices_in(document, "allreduce")
    # MPICH has no separate automatic choice.
    assert "library's auto" not in choices_in(document, "broadcast")
    assert (tmp_path / "study" / "collectives.toml").exists()


def test_from_measures_only_the_messages_of_a_run(hvscale: Run, tmp_path: Path) -> None:
    profiled = hvscale("profile", "-np", "2", "--run", "profiled", "--", "python", "-c", BROADCASTS)
    assert profiled.returncode == 0, profiled.stderr
    # There is time for a first choice at least, and none to confirm the best ones.
    words = ("--from", "profiled", "--minutes", "0.02", "--set", "yield_when_idle=on", "--run", "study", "--json")
    done = hvscale("tune-collectives", "-np", "2", *words)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    requested = requested_env(run_json(tmp_path / "study" / document["jobs"][0]["run"]))
    assert requested["OMPI_MCA_mpi_yield_when_idle"] == "true"
    assert document["sizes"] == {"broadcast": [2 * KIB, 256 * KIB]}
    measured = {(point["operation"], point["bytes"]) for point in document["measurements"]["points"]}
    assert {("broadcast", 2 * KIB)} <= measured <= {("broadcast", 2 * KIB), ("broadcast", 256 * KIB)}
    nothing = hvscale("tune-collectives", "-np", "2", "--from", "profiled", "--ops", "gather", "--run", "other")
    assert nothing.returncode == 2
    assert "no gather of 1K to 512M in this run" in nothing.stderr


def test_a_study_stopped_by_its_time_limit_is_resumed(hvscale: Run, tmp_path: Path) -> None:
    preload, wait = compile_library(tmp_path, WAITS), tmp_path / "wait"
    words = ("--ops", "broadcast,allreduce", "-e", "4K", "--env", f"LD_PRELOAD={preload}", "--env", f"WAIT={wait}")
    wait.touch()
    (tmp_path / "numbers.py").write_text("raise SystemExit")  # it replaces none of Python's modules
    short = hvscale(*STUDY, *words, "--minutes", "0.05")
    assert short.returncode == 0, short.stderr
    document = document_in(tmp_path / "study")
    unfinished = sum(not job["finished"] for job in document["jobs"] if not job["confirmation"])
    assert unfinished
    assert f"before {unfinished} of 2 jobs were finished: resume with --run" in short.stderr
    wait.unlink()
    done = hvscale(*STUDY, *words)
    assert done.returncode == 0, done.stderr
    later = document_in(tmp_path / "study")
    assert all(job["finished"] for job in later["jobs"] if not job["confirmation"])
    known = {key(point): point["seconds"] for point in later["measurements"]["points"]}
    for point in document["measurements"]["points"]:
        assert known[key(point)][: len(point["seconds"])] == point["seconds"]
    other = hvscale("tune-collectives", "-np", "3", "--run", "study")
    assert other.returncode == 2
    assert "holds another study: its np differs" in other.stderr
    assert len(other.stderr.splitlines()) == 1


def key(point: dict[str, Any]) -> tuple[object, ...]:
    return point["operation"], point["np"], point["bytes"], json.dumps(point["choice"], sort_keys=True)


def test_a_choice_in_which_a_rank_dies_is_excluded(hvscale: Run, tmp_path: Path) -> None:
    """The third communicator belongs to the first named algorithm."""
    preload = compile_library(tmp_path, KILLS_RANK_1)
    words = ("--ops", "allreduce", "--env", f"LD_PRELOAD={preload}", "--env", f"DIED={tmp_path / 'died'}")
    done = hvscale(*STUDY, *words)
    assert done.returncode == 0, done.stderr
    assert "library's linear failed and is left out" in done.stderr
    document = document_in(tmp_path / "study")
    job = document["jobs"][0]
    assert (job["finished"], job["problem"]) == (True, None)
    assert job["excluded"] == [{"algorithm": "library", "library_algorithm": "linear"}]
    assert "library's linear" not in choices_in(document, "allreduce")
    assert "library's ring" in choices_in(document, "allreduce")
    assert processes_below(tmp_path) == []


def test_a_rank_that_dies_in_the_baseline_fails_the_study(hvscale: Run, tmp_path: Path) -> None:
    preload = compile_library(tmp_path, KILLS_RANK_1.replace("known == 2", "known == 0"))
    done = hvscale(*STUDY, "--ops", "allreduce", "--env", f"LD_PRELOAD={preload}")
    assert done.returncode == 3, done.stderr
    assert "np 2, allreduce: rank 1" in done.stderr
    assert document_in(tmp_path / "study")["state"] == "failed"
    assert processes_below(tmp_path) == []


def test_choices_with_wrong_results_are_never_used(hvscale: Run, tmp_path: Path) -> None:
    preload = compile_library(tmp_path, WRONG_BROADCASTS)
    done = hvscale(*STUDY, "--ops", "broadcast", "--env", f"LD_PRELOAD={preload}")
    assert done.returncode == 4, done.stderr
    assert "gave wrong results in broadcast" in done.stderr.splitlines()[-1]
    points = document_in(tmp_path / "study")["measurements"]["points"]
    assert any(point["wrong"] and point["choice"]["algorithm"] == "library" for point in points)
    assert not any(point["wrong"] for point in points if point["choice"]["algorithm"] != "library")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-np", "1"), "-np 1: a collective needs at least two ranks"),
        (("-np", "2", "--mpi", "gloo"), "--mpi gloo: its algorithms cannot be chosen"),
        (("-np", "2", "--ops", "broadcast,scan"), "--ops scan: unknown collective. Known: broadcast"),
        (("-np", "2", "--nps", "2,4"), "--nps 2,4: give numbers from 2 to 2 (-np)"),
        (("-np", "2", "--minutes", "0"), "--minutes 0: give a number from 0.001 to 10000000"),
        (("-np", "2", "-b", "4M", "-e", "1M"), "--min-bytes 4M is more than --max-bytes 1M"),
        (("-np", "2", "-e", "much"), "--max-bytes much: invalid size"),
        (("-np", "2", "--from", "nowhere"), "nowhere"),
        (("-np", "2", "--eager-limits", "some"), "--eager-limits some: invalid size"),
        (("-np", "2", "--eager-limits", "64"), "--eager-limits 64: openmpi accepts limits of 80 to 2147483647 bytes"),
        (("-np", "2", "--eager-limits", "1M,2G"), "--eager-limits 1M,2G: openmpi accepts limits of 80 to "),
        (("-np", "2", "-e", "900G"), "more than MPI can count"),
    ],
)
def test_an_invalid_request_starts_nothing(hvscale: Run, tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    done = hvscale("tune-collectives", *words, "--run", "study")
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "study").exists()
