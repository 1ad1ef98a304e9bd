"""mpi4py, and with it every measurement, uses the requested MPI; otherwise the command fails."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_SECONDS, MPICH_PREFIX, Run, needs_mpich, run_json
from tests.system.mpi_prefixes import fake_mvapich2, fake_mvapich2_library, remove_mpi_io, second_mpich

pytestmark = needs_mpich

# The library that mpi4py loads by default in the environment of the programs.
ENVIRONMENT_LIBRARY = f"MPI4PY_LIBMPI={MPICH_PREFIX / 'lib' / 'libmpi.so.12'}"
PRINT_MAPPED_LIBRARY = """
from mpi4py import MPI
files = {line.split()[-1] for line in open("/proc/self/maps") if "/libmpi." in line}
print(MPI.COMM_WORLD.size, *files)
"""
PRINT_MAPPED_LIBRARY_WITH_HOROVOD = f"""
import horovod.torch as hvd
hvd.init()
{PRINT_MAPPED_LIBRARY}
hvd.barrier()
"""
RULE = "-" * 69
# Prints the table of MVAPICH2 2.3.7 on rank 0 (mv2_print_env_info in its sources), interrupted by a
# line of the program.
PRINTS_A_TABLE = f"""
import os
print("before")
if os.environ["MV2_SHOW_ENV_INFO"] == "1" and os.environ["PMI_RANK"] == "0":
    print("\\n MVAPICH2-2.3.7 Parameters\\n{RULE}")
    for name, value in (("PROCESSOR ARCH NAME", "MV2_ARCH_UNKWN"), ("MV2_VBUF_TOTAL_SIZE", 16384), ("Tuning Table:", "A B")):
        print(f"\\t{{name:31}}: {{value}}")
        print("between" if name == "MV2_VBUF_TOTAL_SIZE" else "", end="\\n" if name == "MV2_VBUF_TOTAL_SIZE" else "")
    print("{RULE}")
print("\\nafter\\n{RULE}")
"""
OWN_LINES = ["before", "", "after", RULE]


def path_with_prefix(prefix: Path) -> str:
    """Return a PATH with the prefix's launcher first, then the MPICH environment's programs."""
    return f"{prefix / 'bin'}:{MPICH_PREFIX / 'bin'}:{os.environ['PATH']}"


@pytest.fixture
def mpich_hvscale(tmp_path: Path) -> Run:
    """Run the hvscale of the MPICH environment; another MPICH that is first in PATH stays first."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [str(MPICH_PREFIX / "bin" / "hvscale"), *map(str, arguments)]
        environment = {**os.environ, "COLUMNS": "200", **environment}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
        )

    return run


def test_the_default_flavour_is_that_of_the_environments_horovod(mpich_hvscale: Run, tmp_path: Path) -> None:
    print_size = "import horovod.torch as hvd; hvd.init(); print(hvd.size())"
    done = mpich_hvscale("launch", "-np", 2, "--run", "job", "--", MPICH_PREFIX / "bin" / "python", "-c", print_size)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 2", "[1] 2"]
    [reported] = run_json(tmp_path / "job")["libraries_reported"]
    assert reported["flavour"] == "mpich"


@pytest.mark.parametrize(
    ("mpi", "make", "script"),
    [
        ("mpich", second_mpich, PRINT_MAPPED_LIBRARY_WITH_HOROVOD),
        ("mvapich2", fake_mvapich2_library, PRINT_MAPPED_LIBRARY),
    ],
)
def test_mpi4py_loads_the_launchers_library(
    mpich_hvscale: Run,
    program: Callable[[str], Path],
    tmp_path: Path,
    mpi: str,
    make: Callable[[Path], Path],
    script: str,
) -> None:
    prefix = make(tmp_path)
    library = prefix / "lib" / "libmpi.so.12"
    command = ("launch", "-np", 2, "--mpi", mpi, "--run", "job")
    done = mpich_hvscale(*command, "--", "python", program(script), PATH=path_with_prefix(prefix))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 2 {library}" for rank in range(2)]
    [reported] = run_json(tmp_path / "job")["libraries_reported"]
    assert (reported["flavour"], reported["file"]) == (mpi, str(library))
    assert "ran on" not in done.stderr


def test_the_users_mpi4py_library_takes_precedence_with_a_warning(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix = fake_mvapich2_library(tmp_path)
    command = ("launch", "-np", 2, "--mpi", "mvapich2", "--run", "job", "--env", ENVIRONMENT_LIBRARY)
    done = hvscale(*command, "--", "python", program(PRINT_MAPPED_LIBRARY), PATH=path_with_prefix(prefix))
    assert done.returncode == 0, done.stderr
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {str(MPICH_PREFIX / "lib" / "libmpi.so.12")}
    [warning] = [line for line in done.stderr.splitlines() if "warning: requested mvapich2 5" in line]
    assert "ranks 0-1 ran on mpich 5" in warning


def bench_json(done: subprocess.CompletedProcess[str], folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    assert done.stdout == "" or json.loads(done.stdout) == document
    return document


def test_bench_measures_only_the_requested_library(hvscale: Run, tmp_path: Path) -> None:
    prefix = fake_mvapich2_library(tmp_path)
    command = ("bench", "allreduce", "-np", 2, "--sizes", "4K,64K", "--iterations", 20, "--warmup", 2, "--json")
    backends = ("--backend", "mvapich2,horovod-mvapich2,mpich")
    requested = hvscale(*command, *backends, "--run", "right", PATH=path_with_prefix(prefix))
    assert requested.returncode == 0, requested.stderr
    libraries = {entry["name"]: entry["library"] for entry in bench_json(requested, tmp_path / "right")["backends"]}
    assert libraries["mvapich2"].startswith("MVAPICH2 5")
    assert "Horovod" in libraries["horovod-mvapich2"]
    assert "MVAPICH2 5" in libraries["horovod-mvapich2"]
    assert libraries["mpich"].startswith("MPICH Version: 5")

    given = ("--backend", "mvapich2,mpich", "--env", ENVIRONMENT_LIBRARY)
    wrong = hvscale(*command, *given, "--run", "wrong", PATH=path_with_prefix(prefix))
    assert wrong.returncode == 4, wrong.stderr
    last = wrong.stderr.splitlines()[-1]
    assert last.startswith("hvscale: mvapich2: requested mvapich2 5")
    assert "ranks 0-1 ran on mpich 5" in last
    document = bench_json(wrong, tmp_path / "wrong")
    assert {row["backend"] for row in document["rows"]} == {"mpich"}
    assert document["crossovers"] == []
    assert [entry["state"] for entry in document["backends"]] == ["failed", "finished"]
    assert document["backends"][0]["library"] is None


def test_tables_are_written_only_for_the_requested_library(hvscale: Run, tmp_path: Path) -> None:
    prefix = fake_mvapich2_library(tmp_path)
    command = ("tune-collectives", "-np", 2, "--mpi", "mvapich2", "--ops", "broadcast")
    given = ("--min-bytes", "4K", "--max-bytes", "4K", "--minutes", 0.1, "--json")
    requested = hvscale(*command, *given, "--run", "right", PATH=path_with_prefix(prefix))
    assert requested.returncode == 0, requested.stderr
    assert json.loads(requested.stdout)["library"].startswith("MVAPICH2 5")

    wrong = hvscale(*command, *given, "--run", "wrong", "--env", ENVIRONMENT_LIBRARY, PATH=path_with_prefix(prefix))
    assert wrong.returncode == 4, wrong.stderr
    last = wrong.stderr.splitlines()[-1]
    assert last.startswith("hvscale: requested mvapich2 5")
    assert "ranks 0-1 ran on mpich 5" in last
    assert not (tmp_path / "wrong" / "collectives.toml").exists()
    measured = json.loads((tmp_path / "wrong" / "tune-collectives.json").read_text())["measurements"]
    assert measured["points"] == []


def test_a_missing_library_function_is_a_one_line_error(mpich_hvscale: Run, tmp_path: Path) -> None:
    prefix = remove_mpi_io(second_mpich(tmp_path))
    done = mpich_hvscale(
        "bench", "allreduce", "-np", 2, "--backend", "mpich", "--sizes", "4K", PATH=path_with_prefix(prefix)
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"hvscale: mpich: {prefix / 'lib' / 'libmpi.so.12'} lacks MPI_File_")
    assert "without MPI-IO" in line
    assert "--backend horovod" in line


def test_the_mvapich2_settings_table_is_only_in_the_log(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix = fake_mvapich2(tmp_path)
    python = Path(sys.base_prefix) / "bin" / "python3"  # it has no Horovod, which would have to be built for MVAPICH2
    script, path = program(PRINTS_A_TABLE), path_with_prefix(prefix)
    command = ("launch", "-np", 2, "--mpi", "mvapich2", "--env", "MV2_VBUF_TOTAL_SIZE=8192")
    done = hvscale(*command, "--run", "job", "--", python, script, PATH=path)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert [line[4:] for line in shown if line.startswith("[1]")] == OWN_LINES
    assert [line[4:] for line in shown if line.startswith("[0]")] == ["before", "between", *OWN_LINES[1:]]
    log = (tmp_path / "job/logs/rank-00000.log").read_text().splitlines()
    assert log[:5] == [
        "before",
        "",
        " MVAPICH2-2.3.7 Parameters",
        RULE,
        f"\t{'PROCESSOR ARCH NAME':31}: MV2_ARCH_UNKWN",
    ]
    [reported] = [
        reported for reported in run_json(tmp_path / "job")["settings_in_effect"] if "MVAPICH2" in reported["library"]
    ]
    assert reported["not_applied"] == {"MV2_VBUF_TOTAL_SIZE": "8192 was requested, 16384 is in effect"}
    shown_on_request = hvscale(*command, "--env", "MV2_SHOW_ENV_INFO=1", "--", python, script, PATH=path)
    assert " MVAPICH2-2.3.7 Parameters" in [line[4:] for line in shown_on_request.stdout.splitlines()]
