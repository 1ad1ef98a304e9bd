"""A job whose hvprof runs out of memory: recording stops with one line, the job is not touched."""

import subprocess
from pathlib import Path

import pytest

from hvscale.core.run_folder import RunFolder
from hvscale.profiling import library_path
from hvscale.profiling.analyze.breakdown import breakdown
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
    """How many allocations hvprof asked for, and the lines on stderr; one rank, which has to end
    well.
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
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    right, allocations = done.stdout.splitlines()
    assert right == "all right"
    return int(allocations.split()[0]), done.stderr.splitlines()


def test_no_allocation_that_fails_ends_the_job(open_mpi: Mpi, make_run: MakeRun, failing_malloc: Path) -> None:
    run = make_run(1)
    in_all, lines = start(open_mpi, run, failing_malloc, 1_000_000)
    assert lines == []
    assert breakdown(run).warnings == []
    assert sum(row.calls for row in breakdown(run).rows) == CALLS
    # Of the many alike in the middle, one for each request, every tenth.
    for fail_from in [*range(8), *range(8, in_all - 16, 10), *range(in_all - 16, in_all)]:
        _, lines = start(open_mpi, run, failing_malloc, fail_from)
        assert lines == [LINE], f"from allocation {fail_from} of {in_all} on"
        if fail_from >= 2:  # before, there is not one call
            result = breakdown(run)
            assert "rank 0 ran out of memory: its later calls are not recorded" in result.warnings
            assert sum(row.calls for row in result.rows) < CALLS
