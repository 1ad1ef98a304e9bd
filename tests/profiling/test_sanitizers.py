"""hvprof compiled with the compiler's sanitizers, in real ranks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.breakdown import breakdown
from tests.native import FLAGS, HVPROF, NATIVE, SHARED_LIBRARY
from tests.profiling.conftest import PROGRAMS, MakeRun, Mpi

# mpirun itself must not load a sanitizer's library: only the program that the ranks become.
PRELOADED = "import os, sys; os.environ.update(LD_PRELOAD=sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"


def sanitized(folder: Path, sanitizer: str, runtime: str) -> str:
    """What LD_PRELOAD must name: the sanitizer's library and an hvprof compiled with it."""
    asked = subprocess.run(["cc", f"-print-file-name={runtime}"], capture_output=True, text=True, check=False)
    found = Path(asked.stdout.strip())
    if not found.is_absolute():
        pytest.skip(f"the C compiler has no {runtime}")
    library = folder / "libhvprof.so"
    # ThreadSanitizer knows no fences: the one of a record only orders what a reader of a dead
    # process's file sees.
    more = ["-Wno-tsan"] if sanitizer == "thread" else []
    subprocess.run(
        [
            "cc",
            *FLAGS,
            *SHARED_LIBRARY,
            *more,
            "-DHVPROF_LARGE_COUNTS",
            f"-fsanitize={sanitizer}",
            "-o",
            str(library),
            *HVPROF,
            "-ldl",
        ],
        check=True,
    )
    return f"{found.resolve()}:{library}"


@pytest.fixture(scope="module")
def with_address_sanitizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sanitized(tmp_path_factory.mktemp("sanitized"), "address,undefined", "libasan.so")


@pytest.mark.parametrize("program", ["every_nonblocking", "point_to_point"])
def test_address_sanitizer_finds_nothing(
    open_mpi: Mpi, make_run: MakeRun, with_address_sanitizer: str, program: str
) -> None:
    check_addresses(open_mpi, make_run(2), with_address_sanitizer, 2, [str(open_mpi.compile(program))])


@pytest.mark.parametrize("program", ["every_collective_large", "every_nonblocking_large", "point_to_point_large"])
def test_address_sanitizer_finds_nothing_with_large_counts(
    mpich: Mpi, make_run: MakeRun, with_address_sanitizer: str, program: str
) -> None:
    check_addresses(mpich, make_run(2, mpich.flavour), with_address_sanitizer, 2, [str(mpich.compile(program))])


def test_address_sanitizer_finds_nothing_where_large_counts_are_made_small(
    open_mpi: Mpi, make_run: MakeRun, with_address_sanitizer: str
) -> None:
    check_addresses(open_mpi, make_run(3), with_address_sanitizer, 3, [sys.executable, str(PROGRAMS / "every_call.py")])


def test_a_limit_on_file_sizes_costs_the_profile_and_not_the_job(
    open_mpi: Mpi, make_run: MakeRun, with_address_sanitizer: str
) -> None:
    """The limit leaves room for what Open MPI shares memory by; beyond it the kernel sends a signal
    that ends a process.
    """
    run = make_run(2)
    options = {"ASAN_OPTIONS": "detect_leaks=0", "HVPROF_DIRECTORY": str(run.hvprof)}
    with_default = [str(shutil.which("env")), "--default-signal=XFSZ", str(open_mpi.compile("every_collective"))]
    limited = ["prlimit", "--fsize=20000000", sys.executable, "-c", PRELOADED, with_address_sanitizer, *with_default]
    done = open_mpi.start(2, limited, options)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    assert all(line.startswith("hvprof: ") and "(File too large): the job continues" in line for line in lines)
    assert list(run.hvprof.iterdir()) == []


def check_addresses(mpi: Mpi, run: RunFolder, preload: str, np: int, program: list[str]) -> None:
    # The libraries' own leaks and odd arithmetic are not ours to judge.
    options = {
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "HVPROF_DIRECTORY": str(run.hvprof),
    }
    done = mpi.start(np, [sys.executable, "-c", PRELOADED, preload, *program], options)
    assert done.returncode == 0, done.stderr
    assert "Sanitizer" not in done.stderr
    assert "runtime error" not in done.stderr
    assert breakdown(run).warnings == []


def test_leak_sanitizer_finds_no_leak_of_ours(open_mpi: Mpi, make_run: MakeRun, with_address_sanitizer: str) -> None:
    """Open MPI has leaks of its own, which also show that leaks are looked for: ours are those that
    hvprof's own lines allocated.
    """
    options = {
        # By frame pointers the stacks would end inside Open MPI.
        "ASAN_OPTIONS": "detect_leaks=1:fast_unwind_on_malloc=0",
        "LSAN_OPTIONS": "exitcode=0",
        "HVPROF_DIRECTORY": str(make_run(2).hvprof),
    }
    program = str(open_mpi.compile("every_nonblocking"))
    done = open_mpi.start(2, [sys.executable, "-c", PRELOADED, with_address_sanitizer, program], options)
    assert done.returncode == 0, done.stderr
    assert "Direct leak of" in done.stderr
    allocated_by = [line for line in done.stderr.splitlines() if line.lstrip().startswith("#1 ")]
    assert [line for line in allocated_by if f"{NATIVE}/" in line] == []


@pytest.mark.parametrize("arguments", [["overlapping"], ["threads", "3000"]])
def test_thread_sanitizer_finds_nothing(open_mpi: Mpi, make_run: MakeRun, tmp_path: Path, arguments: list[str]) -> None:
    preload = sanitized(tmp_path, "thread", "libtsan.so")
    run = make_run(2)
    options = {
        # Open MPI is not compiled for it: only what hvprof does counts.
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
        # UCX watches madvise, PMIx wants a fixed address: both collide with ThreadSanitizer's own
        # use of memory.
        "UCX_MEM_EVENTS": "no",
        "PMIX_MCA_gds": "hash",
        "HVPROF_DIRECTORY": str(run.hvprof),
        "HVPROF_MIB": "1",
    }
    program = [str(open_mpi.compile(arguments[0])), *arguments[1:]]
    done = open_mpi.start(2, [sys.executable, "-c", PRELOADED, preload, *program], options)
    assert done.returncode == 0, done.stderr
    assert "ThreadSanitizer" not in done.stderr
    assert sum(row.calls for row in breakdown(run).rows) in (2 * 4 * 3000, 2 * 4 * 8 * 200)
