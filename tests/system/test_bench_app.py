"""`hvscale bench app` with real compilers and ranks: results, errors and resuming."""

import csv
import json
import math
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MPICH_PREFIX, PROGRAMS, Run, needs_mpich, processes_below, run_json, wait_until

SANITIZED = "-O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
ONCE = ("--repeat", "1", "--no-counters", "--run", "bench", "--json")
TINY = {
    "integration": ("--np", "2,4", "--size", "intervals=100000", "--size", "packets=101"),
    "stencil": ("--np", "1,2,4", "--size", "x=7", "--size", "y=5", "--size", "z=9", "--size", "steps=6"),
    "merge_sort": ("--np", "1,2,4", "--size", "samples=10007"),
    "network": ("--np", "4", "--size", "pings=10", "--size", "rounds=1"),
}


def document_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "hvscale/bench-app/2"
    return document


def sanitized(hvscale: Run, name: str) -> dict[str, Any]:
    # MPI itself does not free all memory before it exits.
    leaks = ("--env", "ASAN_OPTIONS=detect_leaks=0")
    return document_of(hvscale("bench", "app", name, "--flags", SANITIZED, *TINY[name], *ONCE, *leaks))


def test_the_integral_is_correct_on_any_number_of_workers(hvscale: Run) -> None:
    document = sanitized(hvscale, "integration")
    results = [run["result"] for run in document["runs"]]
    assert [len(result["packets_per_worker"]) for result in results] == [1, 3]
    assert results[0]["integral"] == results[1]["integral"] == pytest.approx(math.log(101 / 2), abs=1e-6)
    assert (document["base_np"], document["rows"][0]["speed_up"]) == (2, 1)


def test_the_stencil_gives_the_same_bits_on_any_number_of_ranks(hvscale: Run) -> None:
    results = [run["result"] for run in sanitized(hvscale, "stencil")["runs"]]
    assert [result["blocks"] for result in results] == [[1, 1, 1], [1, 1, 2], [2, 1, 2]]
    assert len({result["checksum"] for result in results}) == 1


def test_samples_are_sorted(hvscale: Run) -> None:
    runs = sanitized(hvscale, "merge_sort")["runs"]
    assert [run["np"] for run in runs] == [1, 2, 4]
    assert all(run["result"]["sorted"] for run in runs)
    assert len({run["result"][key] for run in runs for key in ("checksum_before", "checksum_after")}) == 1


def test_network_reports_pings_and_pair_bandwidth(hvscale: Run, tmp_path: Path) -> None:
    document = sanitized(hvscale, "network")
    [run] = document["runs"]
    printed = [json.loads(line) for line in (tmp_path / "bench" / run["folder"] / "logs/rank-00000.log").open()]
    assert run["result"] == printed[-1]
    assert [row["bytes"] for row in document["bandwidth"]] == [16 << power for power in range(17)]
    for row, measured in zip(document["bandwidth"], run["result"]["bandwidth"], strict=True):
        assert len(measured["bytes_per_second"]) == 2
        assert row["slowest_gigabytes_per_second"] == min(measured["bytes_per_second"]) / 1e9
    [ping] = document["pings"]
    assert 0 < ping["min_seconds"] <= ping["median_seconds"] <= ping["max_seconds"]


def test_a_killed_bench_is_resumed(hvscale: Run, tmp_path: Path) -> None:
    command = ("bench", "app", "integration", "--flags", "-O2", "--flags", "-O3 -march=native", "--np", "2")
    more = ("--size", "intervals=3000000", "--repeat", "2", "--run", "bench")
    bench = subprocess.Popen([PROGRAMS / "hvscale", *command, *more], cwd=tmp_path, stderr=subprocess.DEVNULL)
    folder = tmp_path / "bench"
    document = folder / "bench-app.json"
    try:
        wait_until(lambda: document.exists() and len(json.loads(document.read_text())["runs"]) > 0)
    finally:
        bench.send_signal(signal.SIGKILL)
        bench.wait()
    wait_until(lambda: not processes_below(folder))
    first = folder / "np-2-O2-host-repeat-1/run.json"
    kept = first.read_bytes()

    done = hvscale(*command, *more, "--csv", "table.csv", "--json")
    whole = document_of(done)
    assert first.read_bytes() == kept
    assert whole == json.loads(document.read_text())
    assert whole["state"] == "finished"
    assert [(run["flags"], run["repeat"]) for run in whole["runs"]] == [
        (flags, repeat) for repeat in (1, 2) for flags in ("-O2", "-O3 -march=native")
    ]
    times = sorted((run_json(folder / run["folder"])["started_at"], run["folder"]) for run in whole["runs"])
    assert [name for _, name in times] == [run["folder"] for run in whole["runs"]]
    with (tmp_path / "table.csv").open() as table:
        for row, line in zip(whole["rows"], csv.DictReader(table), strict=True):
            seconds = [run["seconds"] for run in whole["runs"] if run["flags"] == row["flags"]]
            assert row["median_seconds"] == pytest.approx(sum(seconds) / 2) == float(line["median_seconds"])
    [best] = whole["best_flags"]
    assert best["sum_of_median_seconds"] == min(row["median_seconds"] for row in whole["rows"])
    for row in whole["counters"]:
        counted = row["counters"]
        assert (counted is None) == (row["problem"] is not None)
        assert counted is None or counted["task_clock_seconds"] > 0
    assert (folder / "bench-app.html").read_text().count('class="chart"') == 1


def test_a_wrong_result_fails_the_bench(hvscale: Run, tmp_path: Path) -> None:
    """The stencil's halo messages are sent empty, so the neighbours keep old values."""
    (tmp_path / "lost.h").write_text(
        "#include <mpi.h>\n#define MPI_Isend(values, count, ...) MPI_Isend(values, 0, __VA_ARGS__)\n"
    )
    done = hvscale("bench", "app", "stencil", "--flags", "-include lost.h", "--np", "2", *TINY["stencil"][2:], *ONCE)
    assert done.returncode == 4
    last = done.stderr.splitlines()[-1]
    assert (
        "-include lost.h, host, np 2: a wrong result: its cells differ from those of the same build on one rank" in last
    )
    document = json.loads((tmp_path / "bench/bench-app.json").read_text())
    assert (document["state"], document["rows"]) == ("failed", [])
    assert [(run["np"], run["repeat"], run["problem"] is None) for run in document["runs"]] == [
        (1, 0, True),
        (2, 1, False),
    ]


@needs_mpich
def test_mpich_programs_are_built_with_its_compiler(hvscale: Run) -> None:
    document = document_of(
        hvscale(
            "bench",
            "app",
            "merge_sort",
            "--mpi",
            "mpich",
            "--flags",
            "-O2",
            "--np",
            "2",
            *TINY["merge_sort"][2:],
            *ONCE,
        )
    )
    assert document["library"]["flavour"] == "mpich"
    assert document["compiler"]["path"] == str(MPICH_PREFIX / "bin/mpicc")
    assert document["runs"][0]["result"]["sorted"]


def test_an_invalid_request_starts_nothing(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale("bench", "app", "merge_sort", "--np", "2,6", "--run", "bench")
    assert done.returncode == 2
    assert done.stderr == (
        "hvscale: --np 6: merge_sort: each rank halves its samples: np must be a power of two, such as 4 or 8\n"
    )
    assert not (tmp_path / "bench").exists()


def test_compiler_errors_are_shown(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale("bench", "app", "stencil", "--flags", "-O2", "--flags", "-O9 -mno-such-option", "--run", "bench")
    assert done.returncode == 2
    first, *others = done.stderr.splitlines()
    assert "--flags '-O9 -mno-such-option': " in first
    assert "mpicc ended with status 1:" in first
    assert any("-mno-such-option" in line for line in others)
    assert not (tmp_path / "bench").exists()
