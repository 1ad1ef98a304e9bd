"""The MPI library that ranks report is compared with the requested one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import HANG_SECONDS, MPICH_PREFIX, PROGRAMS, Run, needs_mpich, run_json
from tests.system.mpi_prefixes import fake_mvapich2

PRINT_LIBRARY = "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0].rstrip(chr(0)))"
WARNING = re.compile(r"requested mvapich2 2\.3\.7, but ranks 0-1 ran on mpich 5\S+ \(/\S+/libmpi\.so\.12\)")
C_PROGRAM = """
#include <mpi.h>
#include <stdio.h>
int main(void)
{
    double value = 1, sum;
    MPI_Init(0, 0);
    for (int step = 0; step < 20; step++) {
        MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        printf("%d images/s\\n", 100 + step);
    }
    MPI_Finalize();
    return sum < 1;
}
"""


@pytest.fixture
def mpich_program(tmp_path: Path) -> Path:
    (tmp_path / "sum.c").write_text(C_PROGRAM)
    subprocess.run([MPICH_PREFIX / "bin/mpicc", "-o", tmp_path / "sum", tmp_path / "sum.c"], check=True)
    return tmp_path / "sum"


@pytest.mark.parametrize(
    ("mpi", "prefix", "soname"),
    [
        ("openmpi", PROGRAMS.parent, "libmpi.so.40"),
        pytest.param("mpich", MPICH_PREFIX, "libmpi.so.12", marks=needs_mpich),
    ],
)
def test_ranks_report_their_library(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, mpi: str, prefix: Path, soname: str
) -> None:
    done = hvscale("launch", "-np", 3, "--mpi", mpi, "--run", "job", "--", "python", program(PRINT_LIBRARY))
    assert done.returncode == 0, done.stderr
    record = run_json(tmp_path / "job")
    [reported] = record["libraries_reported"]
    assert (reported["flavour"], reported["version"]) == (mpi, record["library"]["version"])
    assert reported["file"] == str((prefix / "lib" / soname).resolve())
    assert reported["ranks"] == [0, 1, 2]
    output = {" ".join(line.split()[1:]) for line in done.stdout.splitlines()}
    assert output == {reported["text"].splitlines()[0]}
    assert "ran on" not in done.stderr


@needs_mpich
def test_a_mislabelled_prefix_is_a_warning(hvscale: Run, tmp_path: Path, mpich_program: Path) -> None:
    prefix = fake_mvapich2(tmp_path)
    command = ("launch", "-np", 2, "--mpi", "mvapich2", "--run", "job", "--", mpich_program)
    done = hvscale(*command, PATH=f"{prefix / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    [warned] = [line for line in done.stderr.splitlines() if WARNING.search(line)]
    assert warned.startswith("hvscale: warning: ")
    record = run_json(tmp_path / "job")
    assert [WARNING.fullmatch(text) for text in record["warnings"]].count(None) == len(record["warnings"]) - 1
    assert (record["library"]["flavour"], record["libraries_reported"][0]["flavour"]) == ("mvapich2", "mpich")


@needs_mpich
def test_results_name_only_the_library_that_ran(hvscale: Run, tmp_path: Path, mpich_program: Path) -> None:
    path = f"{fake_mvapich2(tmp_path) / 'bin'}:{os.environ['PATH']}"

    def measured(*words: object) -> str:
        """Run the command, check its warning, and return stdout."""
        done = hvscale(*words, PATH=path)
        assert (done.returncode, len(WARNING.findall(done.stderr)) > 0) == (4, True), done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    launched = ("-np", 2, "--mpi", "mvapich2")
    table = measured("profile", *launched, "--run", "job", "--", mpich_program)
    assert re.search(r"under mpich 5\.", table)
    profile = measured("profile", *launched, "--run", "again", "--json", "--", mpich_program)
    document = json.loads(profile)
    assert document["library"].startswith("mpich 5.")
    assert WARNING.fullmatch(document["warnings"][-1])
    compared = measured("compare", "job", "again")
    assert len(re.findall(r"under mpich 5\.", compared)) == 2
    assert "mvapich2" not in table + compared
    later = hvscale("breakdown", "job", "--json")
    assert (later.returncode, json.loads(later.stdout)["library"]) == (0, document["library"])
    assert hvscale("report", "job").returncode == 0
    page = (tmp_path / "job/report.html").read_text()
    assert f"np 2 · {document['library']} ·" in page
    assert f"<td>library</td><td><code>{document['library']}</code></td>" in page

    repeats = ("--repeat", 2, "--metric", r"(\S+) images/s", "--run")
    measured("scale", "--np", "1,2", "--mpi", "mvapich2", *repeats, "scaled", "--", mpich_program)
    measured("tune", *launched, "--metric", r"(\S+) images/s", "--trials", 2, "--run", "tuned", "--", mpich_program)
    for file in ("scaled/scale.json", "tuned/tune.json"):
        study = json.loads((tmp_path / file).read_text())
        assert study["state"] == "failed"
        assert (study["library"] or {"flavour": "mpich"})["flavour"] == "mpich"
        assert not any(run.get("throughput") for run in study.get("runs", study.get("trials")))


@needs_mpich
def test_a_rank_that_runs_programs_on_two_libraries_reports_both(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    """The second program has its own library, which ignores the launcher and makes a job of one
    rank.
    """
    script = program(PRINT_LIBRARY)
    without_setting = "env -u MPI4PY_LIBMPI"
    both = f"{MPICH_PREFIX / 'bin/python'} {script}; {without_setting} {PROGRAMS / 'python'} {script}"
    done = hvscale("launch", "--mpi", "mpich", "--run", "job", "--", "sh", "-c", both)
    assert done.returncode == 0, done.stderr
    reported = run_json(tmp_path / "job")["libraries_reported"]
    assert sorted((library["flavour"], library["ranks"]) for library in reported) == [("mpich", [0]), ("openmpi", [0])]
    assert re.search(r"requested mpich 5\S+, but rank 0 ran on .*openmpi 5", done.stderr)


def test_a_program_without_mpi_reports_nothing_and_runs_with_a_sanitizer(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "none.c").write_text("int main(void) { return 0; }")
    built = subprocess.run(["cc", "-fsanitize=address", "-o", tmp_path / "none", tmp_path / "none.c"])
    if built.returncode:
        pytest.skip("this compiler has no address sanitizer")
    done = hvscale("launch", "-np", 2, "--run", "job", "--", tmp_path / "none")
    assert done.returncode == 0, done.stderr
    assert run_json(tmp_path / "job")["libraries_reported"] == []


def test_a_missing_preload_library_is_one_warning(tmp_path: Path) -> None:
    without = (
        "import sys; from hvscale.launch.supervision import init_marker; init_marker.LIBRARY = 'libnone.so'; "
        "from hvscale.cli.main import main; "
    )
    words = [sys.executable, "-c", f"{without} sys.argv[0] = 'hvscale'; main()", "launch"]
    done = subprocess.run([*words, "--", "true"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    [warning] = [line for line in done.stderr.splitlines() if "warning" in line]
    assert "ranks cannot report the MPI library they run on: libnone.so is missing from this installation" in warning
    needed = subprocess.run(
        [*words, "--start-timeout", "60", "--", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert needed.returncode == 2
