"""`hvscale bench` with real ranks: correct results, detected errors, and documents that agree with
the ranks' measurements.
"""

import csv
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.core.host import gpus
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, needs_mpich, processes_below, run_json, wait_until

EVERY_COLLECTIVE = Path(__file__).parents[1] / "bench" / "programs" / "every_collective.py"

# Corrupts sums of 512 elements on rank 1, and kills rank 1 in sums of 2048 elements.
WRONG_SUMS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef int (*allreduce)(const void *, void *, int, void *, void *, void *);

int MPI_Allreduce(const void *send, void *receive, int count, void *type, void *operation, void *communicator)
{
    void *library = dlopen("libmpi.so.40", RTLD_LAZY | RTLD_NOLOAD), *next = dlsym(library, "PMPI_Allreduce");
    allreduce profiled;
    memcpy(&profiled, &next, sizeof next);
    int status = profiled(send, receive, count, type, operation, communicator);
    if (atoi(getenv("OMPI_COMM_WORLD_RANK")) == 1 && count == 512)
        ((float *)receive)[300] += 1;
    if (atoi(getenv("OMPI_COMM_WORLD_RANK")) == 1 && count == 2048)
        raise(SIGKILL);
    return status;
}
"""


@pytest.fixture
def wrong_sums(tmp_path: Path) -> Path:
    (tmp_path / "wrong_sums.c").write_text(WRONG_SUMS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "wrong_sums.so", "wrong_sums.c", "-ldl"], cwd=tmp_path, check=True)
    return tmp_path / "wrong_sums.so"


def bench_json(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    return document


@pytest.mark.parametrize(
    ("backend", "mpi", "counts"),
    [
        ("openmpi", "openmpi", (1, 1500)),
        pytest.param("mpich", "mpich", (1500,), marks=needs_mpich),
        ("gloo", "gloo", (1500,)),
        ("horovod-openmpi", "openmpi", (1500,)),
    ],
)
def test_every_collective_is_correct_for_every_type(
    hvscale: Run, tmp_path: Path, backend: str, mpi: str, counts: tuple[int, ...]
) -> None:
    """1500 elements exceed the period of the values and are not a multiple of a vector length."""
    done = hvscale("launch", "-np", 3, "--mpi", mpi, "--run", "job", "--", "python", EVERY_COLLECTIVE, backend, *counts)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "job/logs/rank-00000.log").read_text().splitlines()]
    assert [line["first_wrong"] for line in lines] == [None] * len(lines)
    checked = {line["collective"] for line in lines if line["wrong"] == 0}
    missing = {"reduce", "gather"} if backend.startswith("horovod") else set()
    assert checked == set(COLLECTIVES.all()) - {"barrier"} - missing
    assert {line["collective"] for line in lines} - checked == {"barrier"}
    for line in lines:
        assert len(line["rank_seconds"]) == 3
        # A sample's time is that of its slowest rank, so no rank's mean is larger.
        assert sum(line["seconds"]) / len(line["seconds"]) >= max(line["rank_seconds"]) * (1 - 1e-9)


@needs_mpich
def test_document_and_page_agree_with_rank_measurements(
    open_page: Callable[..., Page], hvscale: Run, tmp_path: Path
) -> None:
    backends = ["openmpi", "mpich"]
    done = hvscale(
        *(
            "bench",
            "reduce-scatter",
            "-np",
            "2",
            "--backend",
            ",".join(backends),
            "--sizes",
            "1,8K,1M",
            "-n",
            "1M:30,10",
        ),
        *("-w", "2", "--until-interval", "1000", "--run", "bench", "--json", "--csv", "rows.csv", "-d", "float16"),
    )
    assert done.returncode == 0, done.stderr
    folder, document = tmp_path / "bench", json.loads(done.stdout)
    assert document == bench_json(folder)
    assert (document["schema"], document["state"], document["np"]) == ("hvscale/bench/2", "finished", 2)
    assert [entry["name"] for entry in document["backends"]] == backends
    assert document["backends"][0]["library"].startswith("Open MPI v")
    assert [(row["backend"], row["bytes"], row["count"], row["in_place"]) for row in document["rows"]] == [
        (backend, size, size // 4, in_place)
        for backend in backends
        for size in (4, 8192, 1 << 20)
        for in_place in (False, True)
    ]
    for entry in document["backends"]:
        written = [json.loads(line) for line in (folder / entry["run"] / "bench.jsonl").read_text().splitlines()]
        rows = [row for row in document["rows"] if row["backend"] == entry["name"]]
        for row, raw in zip(rows, written[1:], strict=True):
            # Any interval is narrow enough, so bench takes the minimum of five samples of two calls
            # each.
            assert (row["samples"], row["iterations"], row["wrong"]) == (5, 10, 0)
            assert row["seconds"] == pytest.approx(sum(raw["seconds"]) / 5)
            assert row["seconds_low"] <= row["seconds"] <= row["seconds_high"]
            assert row["algbw_gigabytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
            assert row["busbw_gigabytes_per_second"] == pytest.approx(row["algbw_gigabytes_per_second"] / 2)
        record = run_json(folder / entry["run"])
        assert (record["state"], record["np"], record["command"]) == (
            "finished",
            2,
            ["python", "-P", "-m", "hvscale.bench.collectives.rank_side.rank"],
        )
    with (tmp_path / "rows.csv").open() as stream:
        assert [row["seconds"] for row in csv.DictReader(stream)] == [str(row["seconds"]) for row in document["rows"]]

    page = open_page(folder / "bench.html", width=1000)
    for chart in ("#latency", "#bandwidth"):
        expect(page.locator(f"{chart} .points path")).to_have_count(6)


def test_each_rank_as_the_root_in_turn(hvscale: Run, tmp_path: Path) -> None:
    words = ("-np", 3, "--root", -1, "--sizes", "4K", "-n", "6", "--run", "b")
    for collective in ("broadcast", "gather", "reduce"):
        done = hvscale("bench", collective, *words, "--in-place", "in")
        assert done.returncode == 0, done.stderr
        document = bench_json(tmp_path / "b")
        [row] = document["rows"]
        assert (document["root"], row["wrong"]) == (-1, 0)
        assert row["seconds"] > 0
        [shown] = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
        assert shown[4] == "all"
        (tmp_path / "b").rename(tmp_path / collective)
    rejected = hvscale("bench", "broadcast", *words[:-1], "other", "--backend", "gloo")
    assert rejected.returncode == 2
    assert (
        "gloo does not support --root -1, each rank as the root in turn; supported by intelmpi, mpich, mvapich2, openmpi"
        in rejected.stderr
    )


def test_wrong_sums_are_detected_and_the_table_is_printed(hvscale: Run, tmp_path: Path, wrong_sums: Path) -> None:
    options = ("-b", "1K", "-e", "4K", "-n", "20", "--env", f"LD_PRELOAD={wrong_sums}")
    (tmp_path / "numbers.py").write_text("")  # a module in the working folder replaces none of Python's
    done = hvscale("bench", "allreduce", "-np", "2", *options, "--run", "bench")
    assert done.returncode == 4, done.stderr
    first, second = bench_json(tmp_path / "bench")["wrong"]
    assert (first["bytes"], first["rank"], first["element"], first["wrong"]) == (2048, 1, 300, 1)
    assert first["got"] == first["expected"] + 1
    assert (first["in_place"], second["in_place"]) == (False, True)
    assert done.stderr.splitlines()[-1] == (
        f"hvscale: openmpi: wrong allreduce of 2048 bytes, out of place: rank 1 got {first['got']:g} in element 300, "
        f"expected {first['expected']:g}; wrong elements: 1; other sizes with wrong results: 1"
    )
    table = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    # As in nccl-tests: size, count, type, redop, root, then twice time, algbw, busbw, #wrong.
    assert [[*line[:5], line[8], line[12]] for line in table] == [
        ["1024", "256", "float", "sum", "-1", "0", "0"],
        ["2048", "512", "float", "sum", "-1", "1", "1"],
        ["4096", "1024", "float", "sum", "-1", "0", "0"],
    ]
    assert "# wrong values: 2 FAILED" in done.stdout


def test_a_killed_rank_keeps_earlier_measurements(hvscale: Run, tmp_path: Path, wrong_sums: Path) -> None:
    options = ("-b", "4K", "-e", "8K", "-n", "20", "--no-check", "--env", f"LD_PRELOAD={wrong_sums}", "--layout", "osu")
    done = hvscale("bench", "allreduce", "-np", "2", *options, "--run", "bench")
    assert done.returncode == 3, done.stderr
    assert "hvscale: openmpi: rank 1 on " in done.stderr
    assert "SIGKILL" in done.stderr
    document = bench_json(tmp_path / "bench")
    assert (document["state"], document["backends"][0]["state"]) == ("failed", "failed")
    assert [row["bytes"] for row in document["rows"]] == [4096, 4096]
    [line] = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert (line[0], line[-1]) == ("4096", "20")


def test_a_terminated_bench_keeps_its_measurements_and_leaves_no_process(tmp_path: Path) -> None:
    options = ("-np", "2", "-b", "4", "-e", "8", "-n", "4:20,1000000000", "--run", "bench")
    bench = subprocess.Popen(
        [str(PROGRAMS / "hvscale"), "bench", "allreduce", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    results = tmp_path / "bench/openmpi/bench.jsonl"
    wait_until(lambda: results.exists() and results.read_text().count("\n") == 3)
    bench.send_signal(signal.SIGTERM)
    stdout, stderr = bench.communicate(timeout=HANG_SECONDS)
    assert bench.returncode == 128 + signal.SIGTERM, stderr
    assert processes_below(tmp_path) == []
    document = bench_json(tmp_path / "bench")
    assert (document["state"], document["backends"][0]["state"]) == ("interrupted", "interrupted")
    assert [row["bytes"] for row in document["rows"]] == [4, 4]
    assert [line.split()[0] for line in stdout.splitlines() if not line.startswith("#")] == ["4"]


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU here")
def test_a_request_rejected_by_the_ranks_exits_with_status_2(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale("bench", "reduce", "-np", "2", "--device", "cuda", "--run", "bench")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "hvscale: openmpi-staged: no NVIDIA GPU here: use --device cpu"
    assert bench_json(tmp_path / "bench")["backends"][0]["problem"] == "no NVIDIA GPU here: use --device cpu"


def test_an_unknown_collective_is_an_error(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale("bench", "allredcue", "-np", "2")
    assert done.returncode == 2
    assert "allreduce" in done.stderr
    assert list(tmp_path.iterdir()) == []
