"""hvprof running out of memory: recording stops with one line, and the job continues."""

import subprocess
from pathlib import Path

import pytest

from hvscale.core.run_folder import RunFolder
from hvscale.profiling import library_path
from hvscale.profiling.analyze.breakdown import breakdown
from tests.conftest import HANG_SECONDS
from tests.native import FLAGS
from tests.profiling.conftest import MakeRun, Mpi

PROGRAMS = Path(__file__).parent / "programs"
LINE = "hvprof: out of memory: recording stops here, and the job continues"
CALLS = 5 + 40 + 2  # collectives of every_allocation.c


@pytest.fixture(scope="module")
def failing_malloc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("failing") / "failing_malloc.so"
    subprocess.run(["cc", *FLAGS, "-fPIC", "-shared", "-o", library, PROGRAMS / "failing_malloc.c"], check=True)
    return library


def start(mpi: Mpi, run: RunFolder, failing_malloc: Path, fail_from: int) -> tuple[int, list[str]]:
    """Runs one rank, which must succeed.

    Returns the number of hvprof's allocations and the lines on stderr.
    """
    for old in run.hvprof.iterdir():
        old.unlink()
    done = subprocess.run(
        [mpi.compile("every_allocation", PROGRAMS)],
        env=mpi.environment(
            {
                "LD_PRELOAD": f"{failing_malloc}:{library_path(large_counts=True)}",
                "HVPROF_DIRECTORY": str(run.hvprof),
                "HVPROF_MIB": "1",
                "FAIL_FROM": str(fail_from),
            }
        ),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result, allocations = done.stdout.splitlines()
    assert result == "all right"
    return int(allocations.split()[0]), done.stderr.splitlines()


def test_a_failed_allocation_does_not_end_the_job(open_mpi: Mpi, make_run: MakeRun, failing_malloc: Path) -> None:
    run = make_run(1)
    total, lines = start(open_mpi, run, failing_malloc, 1_000_000)
    assert lines == []
    assert breakdown(run).warnings == []
    assert sum(row.calls for row in breakdown(run).rows) == CALLS
    # Only every tenth of the many similar ones in the middle, one for each request.
    for fail_from in [*range(8), *range(8, total - 16, 10), *range(total - 16, total)]:
        _, lines = start(open_mpi, run, failing_malloc, fail_from)
        assert lines == [LINE], f"from allocation {fail_from} of {total} on"
        if fail_from >= 2:  # before, not one call is recorded
            result = breakdown(run)
            assert "rank 0 ran out of memory: later calls are not recorded" in result.warnings
            assert sum(row.calls for row in result.rows) < CALLS
