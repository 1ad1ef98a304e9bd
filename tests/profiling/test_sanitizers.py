"""hvprof compiled with the compiler's sanitizers, in real ranks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.breakdown import breakdown
from tests.native import FLAGS, HVPROF, NATIVE, SHARED_LIBRARY, sanitizer_runtime
from tests.profiling.conftest import PROGRAMS, MakeRun, Mpi

# Only the ranks' program may load the sanitizer's library, not mpirun.
PRELOADED = "import os, sys; os.environ.update(LD_PRELOAD=sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"


def sanitized(folder: Path, sanitizer: str, runtime: str) -> str:
    """The value of LD_PRELOAD: the sanitizer's runtime and hvprof compiled with the sanitizer."""
    found = sanitizer_runtime(runtime)
    library = folder / "libhvprof.so"
    # ThreadSanitizer does not support fences. The fence of a record matters only to a reader of a
    # dead process's file.
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
    return f"{found}:{library}"


@pytest.fixture(scope="module")
def with_address_sanitizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sanitized(tmp_path_factory.mktemp("sanitized"), "address,undefined", "libasan.so")


@pytest.fixture(scope="module")
def with_thread_sanitizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sanitized(tmp_path_factory.mktemp("sanitized"), "thread", "libtsan.so")


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


def test_address_sanitizer_finds_nothing_when_large_counts_are_converted(
    open_mpi: Mpi, make_run: MakeRun, with_address_sanitizer: str
) -> None:
    check_addresses(open_mpi, make_run(3), with_address_sanitizer, 3, [sys.executable, str(PROGRAMS / "every_call.py")])


def test_a_limit_on_file_sizes_disables_the_profile_but_not_the_job(
    open_mpi: Mpi, make_run: MakeRun, with_address_sanitizer: str
) -> None:
    """The limit leaves enough for Open MPI's shared memory. Beyond it, the kernel sends a signal
    that ends the process.
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


def test_address_sanitizer_finds_nothing_when_calls_are_only_counted(
    open_mpi: Mpi, make_run: MakeRun, with_address_sanitizer: str
) -> None:
    program = [str(open_mpi.compile("many_kinds")), "300"]
    check_addresses(open_mpi, make_run(2), with_address_sanitizer, 2, program, HVPROF_RECORD="counters")


def check_addresses(mpi: Mpi, run: RunFolder, preload: str, np: int, program: list[str], **more: str) -> None:
    # Ignores leaks and undefined behaviour in other libraries.
    options = {
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "HVPROF_DIRECTORY": str(run.hvprof),
        **more,
    }
    done = mpi.start(np, [sys.executable, "-c", PRELOADED, preload, *program], options)
    assert done.returncode == 0, done.stderr
    assert "Sanitizer" not in done.stderr
    assert "runtime error" not in done.stderr
    assert breakdown(run).warnings == []


def test_leak_sanitizer_finds_no_leak_in_hvprof(open_mpi: Mpi, make_run: MakeRun, with_address_sanitizer: str) -> None:
    """Leaks in Open MPI show that leak detection works. A leak is hvprof's if hvprof's
    sources allocated the memory.
    """
    options = {
        # With frame pointers the stacks would end inside Open MPI.
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
def test_thread_sanitizer_finds_nothing(
    open_mpi: Mpi, make_run: MakeRun, with_thread_sanitizer: str, arguments: list[str]
) -> None:
    run = make_run(2)
    options = {
        # Open MPI is not compiled with the sanitizer: check only hvprof.
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
        # UCX intercepts madvise and PMIx needs a fixed address: both conflict with
        # ThreadSanitizer.
        "UCX_MEM_EVENTS": "no",
        "PMIX_MCA_gds": "hash",
        "HVPROF_DIRECTORY": str(run.hvprof),
        "HVPROF_MIB": "1",
    }
    program = [str(open_mpi.compile(arguments[0])), *arguments[1:]]
    done = open_mpi.start(2, [sys.executable, "-c", PRELOADED, with_thread_sanitizer, *program], options)
    assert done.returncode == 0, done.stderr
    assert "ThreadSanitizer" not in done.stderr
    assert sum(row.calls for row in breakdown(run).rows) in (2 * 4 * 3000, 2 * 4 * 8 * 200)
