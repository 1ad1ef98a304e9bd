"""The MPI library that ranks report: processes with two libraries, invalid reports, mismatches."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hvscale.core.built_library import built_library
from hvscale.core.errors import UntrustedError
from hvscale.core.run_folder import Host, Library, ReportedLibrary, RunRecord, ranks_in_words, release
from hvscale.launch.mpi.reported_library import LONGEST_REPORT_BYTES, LibraryReports, require_requested_library
from hvscale.profiling import library_path
from tests.conftest import HANG_SECONDS

FAKE_MPI = """
#include <stdio.h>
#include <string.h>
int PMPI_Init(int *argc, char ***argv) { puts("started NAME"); return 0; }
int MPI_Init(int *argc, char ***argv) { return PMPI_Init(argc, argv); }
int PMPI_Get_library_version(char *text, int *length)
{
    strcpy(text, "Open MPI vNAME, package");
    *length = (int)strlen(text);
    return 0;
}
"""
CALLER = "int MPI_Init(int *, char ***); int start(void) { return MPI_Init(0, 0); }"
# Like Python with extension modules: the libraries' symbols are not visible to each other.
LOADS_TWO = """
#include <dlfcn.h>
int main(int argc, char **argv)
{
    dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    int (*start)(void) = (int (*)(void))dlsym(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL), "start");
    return start();
}
"""


def compiled(folder: Path, name: str, source: str, *words: str | Path) -> Path:
    (folder / f"{name}.c").write_text(source)
    subprocess.run(["cc", "-w", "-o", folder / name, folder / f"{name}.c", *words], check=True)
    return folder / name


@pytest.fixture
def program_with_two_libraries(tmp_path: Path) -> list[Path]:
    """A program that loads two MPI libraries and initializes the second, version 2.0."""
    callers = []
    for version in ("1.0", "2.0"):
        shared = ("-shared", "-fPIC")
        mpi = compiled(tmp_path, f"libmpi-{version}.so", FAKE_MPI.replace("NAME", version), *shared)
        callers.append(compiled(tmp_path, f"caller-{version}.so", CALLER, *shared, mpi))
    return [compiled(tmp_path, "loads-two", LOADS_TWO, "-ldl"), *callers]


@pytest.mark.parametrize("preloaded_after", [[], [library_path()]], ids=["alone", "before hvprof"])
def test_a_process_with_two_libraries_reports_the_initialized_one(
    program_with_two_libraries: list[Path], tmp_path: Path, preloaded_after: list[Path]
) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    preload = ":".join(map(str, [built_library("libhvinit-marker.so"), *preloaded_after]))
    environment = {
        "LD_PRELOAD": preload,
        "HVSCALE_INIT_MARKER": str(ranks / "rank-00000"),
        "HVPROF_DIRECTORY": str(tmp_path),
    }
    done = subprocess.run(
        program_with_two_libraries,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.stdout == "started 2.0\n", done.stderr
    reported = LibraryReports(tmp_path, 1).new()
    assert reported is not None
    [library] = reported
    assert (library.version, library.file) == ("2.0", str((tmp_path / "libmpi-2.0.so").resolve()))
    assert not list(ranks.glob("*writing*"))


def test_a_rank_that_cannot_write_its_report_continues(program_with_two_libraries: list[Path], tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    words = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *map(str, program_with_two_libraries)]
    for stem in (tmp_path / "ranks" / "rank-00000", tmp_path / "nowhere" / "rank-00000"):
        environment = {
            "LD_PRELOAD": str(built_library("libhvinit-marker.so")),
            "HVSCALE_INIT_MARKER": str(stem),
        }
        done = subprocess.run(
            words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=HANG_SECONDS
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert LibraryReports(tmp_path, 1).new(ended=True) is None


def test_files_that_are_not_reports_are_ignored(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()

    def name(rank: int) -> Path:
        return ranks / f"rank-{rank:05d}.library-0123456789abcdef"

    text = "/opt/libmpi.so\nOpen MPI v5.0.11, package"
    name(0).write_text(text)
    os.mkfifo(name(1))
    (tmp_path / "elsewhere").write_text(text)
    name(2).symlink_to(tmp_path / "elsewhere")
    name(3).write_bytes(b"/opt/libmpi.so\n\xff\xfe")
    name(4).write_text("/opt/libmpi.so\nOpen MPI \x1b[31mv5.0.11, package")
    name(5).write_text(text + " " * LONGEST_REPORT_BYTES)
    name(6).write_text("/opt/libmpi.so\n")
    name(7).mkdir()
    name(99).write_text(text)
    (ranks / "rank-00008.library-1").write_text(text)
    reported = LibraryReports(tmp_path, 9).new(ended=True)
    assert reported == [
        ReportedLibrary(
            flavour="openmpi", version="5.0.11", text="Open MPI v5.0.11, package", file="/opt/libmpi.so", ranks=[0]
        )
    ]


def record_of(requested: tuple[str, str], *reported: tuple[str, str, list[int]]) -> RunRecord:
    return RunRecord(
        command=["true"],
        np=4,
        library=Library(flavour=requested[0], version=requested[1], transport="auto"),
        libraries_reported=[
            ReportedLibrary(
                flavour=flavour, version=version, text="CRAY MPICH 8\nmore", file="/opt/libmpi.so", ranks=ranks
            )
            for flavour, version, ranks in reported
        ],
        host=Host(name="h", kernel="k", cpu="c", cores=2, memory_bytes=1),
        working_directory="/",
        started_at=datetime.now(UTC),
    )


@pytest.mark.parametrize(
    ("requested", "reported"),
    [
        (("openmpi", "5.0.11"), ("openmpi", "5.0.11")),
        (("openmpi", "5.0.11"), ("openmpi", "v5.0.11")),
        (("intelmpi", "2021.13"), ("intelmpi", "2021.13.0")),
        (("mvapich2", "2.3.7-GDR"), ("mvapich2", "2.3.7")),
        (("mpich", "4.3.0b1"), ("mpich", "4.3.0b1")),
    ],
)
def test_two_spellings_of_a_version_are_equal(requested: tuple[str, str], reported: tuple[str, str]) -> None:
    record = record_of(requested, (*reported, [0, 1, 2, 3]))
    assert record.library_difference is None
    assert record.measured_library == record.library
    require_requested_library(record)


def test_a_version_of_any_length_is_compared() -> None:
    digits = "5" * 5000
    assert release(digits) == ([], digits)


@pytest.mark.parametrize(
    ("requested", "reported", "words", "measured"),
    [
        (
            ("mvapich2", "2.3.7"),
            [("mpich", "5.0.2", [0, 1, 3])],
            "requested mvapich2 2.3.7, but ranks 0-1, 3 ran on mpich 5.0.2 (/opt/libmpi.so)",
            "mpich 5.0.2",
        ),
        (
            ("openmpi", "5.0.11"),
            [("openmpi", "4.1.4", [2])],
            "requested openmpi 5.0.11, but rank 2 ran on openmpi 4.1.4 (/opt/libmpi.so)",
            "openmpi 4.1.4",
        ),
        (
            ("mpich", "4.3.0"),
            [("mpich", "4.3.0", [0]), ("unknown", "", [1, 2])],
            "requested mpich 4.3.0, but rank 0 ran on mpich 4.3.0 (/opt/libmpi.so), "
            "ranks 1-2 ran on unknown (CRAY MPICH 8) (/opt/libmpi.so)",
            "mixed (mpich 4.3.0, unknown (CRAY MPICH 8))",
        ),
        (
            ("mpich", "4.3.0"),
            [("mpich", "4.3.0b1", [0])],
            "requested mpich 4.3.0, but rank 0 ran on mpich 4.3.0b1 (/opt/libmpi.so)",
            "mpich 4.3.0b1",
        ),
    ],
)
def test_a_mismatch_names_both(
    requested: tuple[str, str], reported: list[tuple[str, str, list[int]]], words: str, measured: str
) -> None:
    record = record_of(requested, *reported)
    assert record.library_difference == words
    assert record.measured_library.name == measured
    with pytest.raises(UntrustedError) as raised:
        require_requested_library(record)
    assert (str(raised.value), raised.value.exit_status) == (words, 4)


def test_no_report_is_no_mismatch() -> None:
    record = record_of(("openmpi", "5.0.11"))
    assert record.library_difference is None
    assert record.measured_library == record.library


def test_ranks_are_shown_as_ranges() -> None:
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7-8"
    odd = list(range(1, 512, 2))
    assert ranks_in_words(odd) == "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 248 more"
