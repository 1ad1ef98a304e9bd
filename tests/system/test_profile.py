"""`hvscale profile` and `breakdown` for programs with known messages."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, run_json

RANKS = 2
ROUNDS = 5
BIG, FUSED, PARTS = 4 * 2**20, 2**20, 4
BINS = "512K,1M,4M"

# Each round sends one all-reduce of BIG bytes, then PARTS tensors with FUSED bytes in total, which
# Horovod fuses into one message.
HOROVOD_PROGRAM = f"""
import horovod.torch as hvd, os, time, torch
hvd.init()
parts = [torch.ones({FUSED} // 4 // {PARTS}) for _ in range({PARTS})]
for step in range({ROUNDS}):
    hvd.allreduce(torch.ones({BIG} // 4), name=f"big.{{step}}")
    hvd.grouped_allreduce(parts, name=f"parts.{{step}}")
if "HOROVOD_TIMELINE" in os.environ:
    time.sleep(1)  # at shutdown Horovod loses events that it has not yet written
"""

MPI_PROGRAM = f"""
import numpy, time
from mpi4py import MPI
world = MPI.COMM_WORLD
for size in (1000, 200_000):
    data, total = numpy.ones(size, numpy.uint8), numpy.empty(size, numpy.uint8)
    for _ in range({ROUNDS}):
        world.Allreduce(data, total)
world.Allreduce(MPI.IN_PLACE, total)
world.Bcast(total, root=1)
world.Barrier()
"""


def rows(document: dict[str, Any], operation: str) -> dict[tuple[int, int | None], tuple[int, int]]:
    """Return calls and bytes of an operation by bin."""
    return {
        (row["bytes_min"], row["bytes_max"]): (row["calls"], row["bytes"])
        for row in document["rows"]
        if row["operation"] == operation
    }


def assert_messages_counted_exactly(document: dict[str, Any], source: str) -> None:
    assert document["schema"] == "hvscale/breakdown/1"
    assert (document["source"], document["np"]) == (source, RANKS)
    found = rows(document, "allreduce")
    assert found[512 * 1024 + 1, 2**20] == (RANKS * ROUNDS, RANKS * ROUNDS * FUSED)
    assert found[2**20 + 1, 4 * 2**20] == (RANKS * ROUNDS, RANKS * ROUNDS * BIG)


def test_horovod_messages_over_gloo_are_counted_exactly(hvscale: Run, program: Callable[[str], Path]) -> None:
    job = ("-np", RANKS, "--mpi", "gloo", "--run", "job", "--", "python", program(HOROVOD_PROGRAM))
    done = hvscale("profile", "--bins", BINS, "--json", *job)
    assert done.returncode == 0, done.stderr
    assert_messages_counted_exactly(json.loads(done.stdout), "horovod-timeline")


def test_a_timeline_of_a_program_without_horovod_is_warned_of(hvscale: Run) -> None:
    done = hvscale("profile", "--timeline", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "hvscale: warning: no timeline was recorded: --timeline needs a program that uses Horovod" in done.stderr


def test_horovod_messages_over_mpi_are_counted_exactly_and_its_timeline_adds_phases(
    hvscale: Run, program: Callable[[str], Path]
) -> None:
    job = ("-np", RANKS, "--mpi", "openmpi", "--run", "job", "--", "python", program(HOROVOD_PROGRAM))
    done = hvscale("profile", "--timeline", "--bins", BINS, "--json", *job)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert_messages_counted_exactly(document, "hvprof")
    assert document["ranks"] == [0, 1]
    (allreduce,) = document["horovod_phases"]["operations"]
    assert (allreduce["operation"], allreduce["messages"]) == ("allreduce", 2 * ROUNDS)
    assert allreduce["tensors"] == ROUNDS * (1 + PARTS)
    for phase in ("negotiation", "copy_in", "communication", "copy_out"):
        assert allreduce[f"{phase}_seconds"] > 0
    fusion = document["horovod_phases"]["fusion"]
    assert (fusion["tensors_per_message_max"], fusion["fused_messages"]) == (PARTS, ROUNDS)
    assert fusion["fill_max"] == pytest.approx(FUSED / fusion["threshold_bytes"])
    assert {row["bitwise"] for row in document["waiting"]["operations"]} == {True, False}
    text = hvscale("breakdown", "job").stdout
    assert "allreduce, coordination" in text
    assert "fusion buffer of 128 MiB" in text


def test_any_mpi_program_is_tabulated(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    done = hvscale("profile", "-np", RANKS, "--run", "job", "--csv", "table.csv", "--", "python", program(MPI_PROGRAM))
    assert done.returncode == 0, done.stderr
    tabulated = hvscale("breakdown", "job", "--json")
    document = json.loads(tabulated.stdout)
    assert rows(document, "allreduce") == {
        (1, 128 * 1024): (RANKS * ROUNDS, RANKS * ROUNDS * 1000),
        (128 * 1024 + 1, 16 * 2**20): (RANKS * (ROUNDS + 1), RANKS * (ROUNDS + 1) * 200_000),
    }
    assert rows(document, "broadcast") == {(128 * 1024 + 1, 16 * 2**20): (RANKS, RANKS * 200_000)}
    assert rows(document, "barrier") == {(0, 0): (RANKS, 0)}
    assert document["ranks"] == [0, 1]
    of_rank_1 = [row for row in document["rank_rows"] if row["rank"] == 1 and row["operation"] == "allreduce"]
    assert [row["calls"] for row in of_rank_1] == [ROUNDS, ROUNDS + 1]
    assert sum(row["share"] for row in document["rows"]) == pytest.approx(1)
    for row in document["rows"]:
        assert 0 <= row["p50_seconds"] <= row["p99_seconds"] <= row["seconds"]
        assert row["mean_seconds"] == pytest.approx(row["seconds"] / row["calls"])
        if row["operation"] == "allreduce":  # busbw = algbw x 2 (n - 1) / n
            assert row["algbw_gigabytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
            assert row["busbw_gigabytes_per_second"] == pytest.approx(
                row["algbw_gigabytes_per_second"] * 2 * (RANKS - 1) / RANKS
            )
    with (tmp_path / "table.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert sum(int(line["calls"]) for line in lines if not line["rank"]) == sum(
        row["calls"] for row in document["rows"]
    )
    table = hvscale("breakdown", "job", "--bins", "pow2", "--per-rank").stdout
    assert "allreduce" in table
    assert "rank 1" in table


def test_a_moved_run_is_still_readable(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    assert hvscale("profile", "-np", RANKS, "--run", "job", "--", "python", program(MPI_PROGRAM)).returncode == 0
    here = json.loads(hvscale("breakdown", "job", "--json").stdout)
    shutil.move(tmp_path / "job", tmp_path / "moved")
    moved = json.loads(hvscale("breakdown", "moved", "--json").stdout)
    assert moved["rows"] == here["rows"]


def test_a_killed_rank_loses_no_record(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    script = program(
        MPI_PROGRAM
        + "\nimport os, signal\nif world.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1200)\n"
    )
    done = hvscale("profile", "-np", RANKS, "--run", "job", "--", "python", script)
    assert done.returncode == 3
    assert run_json(tmp_path / "job")["failed_rank"] == 1
    document = json.loads(hvscale("breakdown", "job", "--json").stdout)
    assert sum(calls for calls, _ in rows(document, "allreduce").values()) == RANKS * (2 * ROUNDS + 1)


def test_a_job_without_a_collective_warns(hvscale: Run) -> None:
    done = hvscale("profile", "-np", RANKS, "--set", "fusion_threshold=16M", "--", "true")
    assert done.returncode == 0
    assert "no " in done.stderr
    assert "collective" in done.stderr
    unused = "hvscale: warning: HOROVOD_FUSION_THRESHOLD: no effect, because the profile shows no Horovod"
    assert unused in done.stderr.splitlines()


@pytest.fixture
def recorded(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> Path:
    assert hvscale("profile", "-np", RANKS, "--run", "job", "--", "python", program(MPI_PROGRAM)).returncode == 0
    return tmp_path / "job"


def test_damaged_runs_are_rejected_in_one_line_and_not_changed(hvscale: Run, recorded: Path, tmp_path: Path) -> None:
    def rejected(what: object, message: str) -> None:
        done = hvscale("breakdown", what)
        assert done.returncode == 2, done.stdout
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1

    (tmp_path / "empty").mkdir()
    rejected("empty", "is not the folder of a run")
    rejected("nowhere", "is not a folder")
    rejected(recorded / "run.json", "is not a folder")
    assert hvscale("breakdown", recorded, "--bins", "12Q").returncode == 2

    profiles = sorted(recorded.glob("hvprof/*.hvp"))
    contents = [profile.read_bytes() for profile in profiles]
    profiles[0].write_bytes(b"garbage" * 1000)
    remaining = hvscale("breakdown", recorded, "--json")
    assert remaining.returncode == 4
    assert json.loads(remaining.stdout)["ranks"] == [1]
    assert profiles[0].name in remaining.stderr.splitlines()[-1]
    reported = hvscale("report", recorded, "--output", "page.html")
    assert reported.returncode == 4
    assert profiles[0].name in reported.stderr.splitlines()[-1]
    assert "report: page.html" in reported.stderr.splitlines()
    assert profiles[0].name in (tmp_path / "page.html").read_text()
    profiles[1].write_bytes(contents[1][:50])
    rejected(recorded, profiles[0].name)
    for profile, content in zip(profiles, contents, strict=True):
        profile.write_bytes(content)
    assert hvscale("breakdown", recorded).returncode == 0

    record = (recorded / "run.json").read_bytes()
    (recorded / "run.json").write_bytes(record[: len(record) // 2])
    rejected(recorded, "run.json cannot be read")
    (recorded / "run.json").write_bytes(b'{"schema": "hvscale/run/99"}')
    rejected(recorded, "was written by a newer hvscale")
