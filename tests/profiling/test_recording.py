"""hvprof in real ranks: its counts under each MPI, and its failures."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling import library_path, preload_environment, step, trim_profiles
from hvscale.profiling.analyze.breakdown import breakdown, read_recording
from hvscale.profiling.analyze.explanation import explained_breakdown
from hvscale.profiling.compare import compare
from hvscale.profiling.read.profile_file import BITWISE, BUFFER_BITS, RECORD, RECORDS_START, Header, ProfileFile
from tests.conftest import HANG_SECONDS, Run
from tests.native import FLAGS
from tests.profiling.conftest import PROGRAMS, MakeRun, Mpi

INT, DOUBLE = 4, 8
BITWISE_COUNT = 13  # elements of the bitwise reductions in every_collective.c, and of no other call


def records(path: Path) -> tuple[ProfileFile, np.ndarray]:
    profile = ProfileFile(path)
    return profile, np.sort(np.concatenate([np.empty(0, RECORD), *profile.chunks()]), order="sequence")


def sizes(profile: ProfileFile, found: np.ndarray) -> list[int]:
    ranks: list[int] = profile.communicators["size"][found["communicator"]].tolist()
    return ranks


def profile_of(run: RunFolder, rank: int) -> Path:
    return run.hvprof / f"rank-{rank:05d}.hvp"


def expected(rank: int, size: int) -> list[tuple[str, int, int]]:
    """The operation, bytes and ranks of each call in every_collective.c, in order."""
    ascending = size * (size + 1) // 2
    of_all = [
        ("barrier", 0),
        ("broadcast", 100 * INT),
        ("gather", size * 3 * DOUBLE),
        ("gather", size * 3 * DOUBLE),
        ("gatherv", (ascending if rank == 0 else rank + 1) * INT),
        ("scatter", size * 5 * INT),
        ("scatterv", (2 * size if rank == 0 else 2) * INT),
        ("allgather", size * 7 * INT),
        ("allgatherv", ascending * INT),
        ("alltoall", size * 2 * DOUBLE),
        ("alltoallv", size * (rank + 1) * INT),
        ("alltoallw", (rank + 1) * sum(DOUBLE if sender % 2 else INT for sender in range(size))),
        ("reduce", 11 * INT),
        ("allreduce", 1000 * DOUBLE),
        ("allreduce", 1000 * DOUBLE),
        ("allreduce", 0),
        *((operation, BITWISE_COUNT * INT) for operation in ("allreduce", "allreduce", "reduce")),
        ("reduce-scatter", ascending * INT),
        ("reduce-scatter-block", size * 6 * INT),
        ("scan", 9 * INT),
        ("exscan", 9 * INT),
        ("broadcast", 4 * 3 * INT),
    ]
    own, other = (1, size - 1) if rank == size - 1 else (size - 1, 1)
    between_two_groups = [
        ("broadcast", 0 if 0 < rank < size - 1 else 50 * INT, own),
        ("allgather", other * 2 * INT, own),
        ("gather", (size - 1) * 3 * INT, own),
        ("gatherv", (size * (size - 1) // 2 if rank == size - 1 else rank + 1) * INT, own),
        ("scatter", (size - 1) * 5 * INT, own),
        ("reduce", 11 * INT, own),
    ]
    among_neighbours = [
        ("neighbor-allgather", 2 * 3 * INT),
        ("neighbor-allgatherv", 8 * INT),
        ("neighbor-alltoall", 2 * 2 * DOUBLE),
        ("neighbor-alltoallv", 8 * INT),
        ("neighbor-alltoallw", 8 * DOUBLE),
        ("neighbor-allgather", 5 * INT),
    ]
    return [
        *((operation, count, size) for operation, count in of_all),
        *between_two_groups,
        *((operation, count, size) for operation, count in among_neighbours),
    ]


@pytest.mark.parametrize(("program", "prefix"), [("every_collective", ""), ("every_nonblocking", "i")])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_every_collective_is_counted_exactly(
    any_mpi: Mpi, make_run: MakeRun, size: int, program: str, prefix: str
) -> None:
    check_every_collective(any_mpi, make_run, size, program, prefix)


@pytest.mark.parametrize(("program", "prefix"), [("every_collective_large", ""), ("every_nonblocking_large", "i")])
def test_every_collective_with_large_counts_is_counted_exactly(
    mpi_with_large_counts: Mpi, make_run: MakeRun, program: str, prefix: str
) -> None:
    check_every_collective(mpi_with_large_counts, make_run, 3, program, prefix)


def check_every_collective(any_mpi: Mpi, make_run: MakeRun, size: int, program: str, prefix: str) -> None:
    run = make_run(size, any_mpi.flavour)
    any_mpi.record(run, size, [str(any_mpi.compile(program))])
    for rank in range(size):
        profile, found = records(profile_of(run, rank))
        assert (profile.header.rank, profile.header.world_size) == (rank, size)
        assert profile.header.flavour == any_mpi.flavour
        assert profile.header.library.startswith("Open MPI" if any_mpi.flavour == "Open MPI" else "MPICH")
        names = [profile.header.operations[code] for code in found["operation"]]
        assert list(zip(names, found["bytes"], sizes(profile, found), strict=True)) == [
            (prefix + operation, count, ranks) for operation, count, ranks in expected(rank, size)
        ]
        without_buffer = np.array(names)[found["buffer_and_thread"] << (64 - BUFFER_BITS) == 0].tolist()
        bystander = 0 < rank < size - 1  # of the broadcast between two groups
        assert without_buffer == [prefix + "barrier", *([prefix + "broadcast"] if bystander else [])]
        assert (found["flags"] & BITWISE != 0).tolist() == (found["bytes"] == BITWISE_COUNT * INT).tolist()
        assert profile.warnings == []
        ends = found["start_ns"] + found["duration_ns"]
        assert (ends[:-1] <= found["start_ns"][1:]).all()

    result = breakdown(run)
    assert result.warnings == []
    assert result.ranks == list(range(size))
    calls = Counter(call[0] for rank in range(size) for call in expected(rank, size))
    total = Counter[str]()
    for rank in range(size):
        for operation, count, _ in expected(rank, size):
            total[operation] += count
    for operation in calls:
        rows = [row for row in result.rows if row.operation == prefix + operation]
        assert sum(row.calls for row in rows) == calls[operation]
        assert sum(row.bytes for row in rows) == total[operation]


@pytest.mark.parametrize("size", [2, 3])
def test_a_communicator_has_the_same_identity_on_all_members(any_mpi: Mpi, make_run: MakeRun, size: int) -> None:
    """The bytes of each all-reduce in identities.c identify the communicator."""
    run = make_run(size, any_mpi.flavour)
    any_mpi.record(run, size, [str(any_mpi.compile("identities"))])
    recording = read_recording(run)
    events = recording.load()
    identities: dict[int, set[int]] = {}
    calls: Counter[int] = Counter()
    for which, place in zip(events.bytes.tolist(), events.communicator.tolist(), strict=True):
        identities.setdefault(which, set()).add(events.communicators[place])
        calls[which] += 1
    world = identities.pop(1)
    assert identities.pop(22) == world
    alone = (20, 21)  # MPI_COMM_SELF and a duplicate: one identity per rank
    assert [len(identities.pop(which)) for which in alone] == [size, size]
    assert sorted(identities) == list(range(2, 20))
    assert all(len(known) == 1 for known in identities.values()), identities
    assert len(set.union(world, *identities.values())) == 19
    members = {5: 1, 6: size - 1, 7: size - 1, 10: size - 1, 11: size - 1}
    assert all(calls[which] == members.get(which, size) for which in range(2, 20))
    assert not any((ProfileFile(profile_of(run, rank)).communicators["flags"] != 0).any() for rank in range(size)), (
        "every constructor is known"
    )

    of_world = np.flatnonzero(events.communicator == events.communicators.index(next(iter(world))))
    assert sorted(zip(events.rank[of_world], events.ordinal[of_world], events.bytes[of_world], strict=True)) == [
        (rank, ordinal, which) for rank in range(size) for ordinal, which in ((0, 1), (1, 22))
    ]
    assert (events.buffer != 0).all()
    for rank in range(size):
        first, second = recording.steps[rank].tolist()
        own = events.start_ns[events.rank == rank]
        assert np.sort(own)[0] < first < np.sort(own)[1]
        assert own.max() < second


def test_python_marks_steps(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    marks = "import hvscale.profiling as p; p.step(); from mpi4py import MPI; p.step(); p.step()"
    open_mpi.record(run, 1, [sys.executable, "-c", marks])
    recording = read_recording(run)
    assert len(recording.steps[0]) == 2, "before MPI_Init there is no profile"
    assert len(recording.events) == 0
    step()  # not preloaded here


def headers_of(run: RunFolder, ranks: int) -> list[Header]:
    return [ProfileFile(profile_of(run, rank)).header for rank in range(ranks)]


def test_ranks_of_one_host_share_a_clock(any_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(3, any_mpi.flavour)
    any_mpi.record(run, 3, [str(any_mpi.compile("barriers")), "3"])
    headers = headers_of(run, 3)
    assert [header.clock_error_ns for header in headers] == [0, 0, 0]
    assert len({header.clock_offset_ns for header in headers}) == 1


@pytest.fixture(scope="module")
def apart() -> list[str]:
    """Start of a command in its own time namespace, whose clock differs by the process id in
    seconds.
    """
    words = ["sh", "-c", 'exec unshare --time --monotonic $$ --fork -- "$0" "$@"']
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no time namespaces here")
    return words


def test_clocks_are_compared_along_a_tree(open_mpi: Mpi, make_run: MakeRun, apart: list[str]) -> None:
    run = make_run(7)
    open_mpi.record(run, 7, [*apart, str(open_mpi.compile("steps")), "2"])
    headers = headers_of(run, 7)
    assert len({header.clock_offset_ns for header in headers}) == 7
    errors = [header.clock_error_ns for header in headers]
    # A rank's error contains that of its parent: the rank without its lowest bit.
    assert errors[0] == 0
    assert all((error or 0) > (errors[rank & (rank - 1)] or 0) for rank, error in enumerate(errors) if rank)
    # No rank leaves an all-reduce before the last one arrives. The clocks differ by seconds.
    waiting = explained_breakdown(run).waiting
    assert waiting is not None
    assert waiting.matched > 0
    assert waiting.clock_conflicts == 0


def test_a_rank_without_hvprof_does_not_block_the_others(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(4)
    without = 'if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then unset LD_PRELOAD; fi; exec "$0" "$@"'
    command = ["sh", "-c", without, str(open_mpi.compile("steps")), "3"]
    done = open_mpi.start(4, command, open_mpi.preload(run))
    assert done.returncode == 0, done.stdout + done.stderr
    # Its parent and its child.
    printed = done.stdout + done.stderr
    assert printed.count("rank 2 did not answer within 10 s") == printed.count("did not answer") == 2
    errors = {rank: ProfileFile(profile_of(run, rank)).header.clock_error_ns for rank in (0, 1, 3)}
    assert errors == {0: 0, 1: 0, 3: None}
    # Rank 3 does not know its job. A broadcast, and three steps of four all-reduces:
    found = explained_breakdown(run)
    assert found.waiting is not None, found.unavailable
    assert found.waiting.matched == 1 + 3 * 4
    assert any("the waiting times leave out 1 of 4 ranks" in warning for warning in found.warnings)


LATE_RANK = """
#include <stdlib.h>
#include <unistd.h>
int PMPI_Init(int *, char ***);
int MPI_Init(int *argc, char ***argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    int status = PMPI_Init(argc, argv);
    if (atoi(rank) == 1)
        sleep(11);
    return status;
}
"""


@pytest.mark.parametrize("name", ["open_mpi", "mpich"])
def test_a_late_answer_does_not_reach_the_program(
    name: str, make_run: MakeRun, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    mpi: Mpi = request.getfixturevalue(name)
    run = make_run(2, mpi.flavour)
    (tmp_path / "late.c").write_text(LATE_RANK)
    late = tmp_path / "late.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", late, tmp_path / "late.c"], check=True)
    environment = mpi.preload(run)
    environment["LD_PRELOAD"] += f":{late}"
    done = mpi.start(2, [str(mpi.compile("any_tag"))], environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("rank 1 did not answer within 10 s") == 1


def test_an_mpi_program_that_a_rank_starts_is_left_out(open_mpi: Mpi, make_run: MakeRun) -> None:
    program = str(open_mpi.compile("steps"))
    run = make_run(2)
    # Without what mpirun told it, a program is a job of its own.
    alone = r"""(unset $(env | sed -nE 's/^((OMPI|PMIX)_[^=]*)=.*/\1/p'); "$0" 5)"""
    command = ["sh", "-c", f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || {alone}; exec "$0" "$@"', program, "3"]
    open_mpi.record(run, 2, command)
    assert len(list(run.hvprof.glob("*.hvp"))) == 3
    found = breakdown(run)
    # On two ranks, a broadcast and three steps of four all-reduces:
    assert {row.operation: row.calls for row in found.rows} == {"broadcast": 2, "allreduce": 2 * 3 * 4}
    assert any("which this job's ranks started" in warning for warning in found.warnings)


def test_clocks_of_different_hosts_are_aligned(any_mpi: Mpi, make_run: MakeRun, apart: list[str]) -> None:
    run = make_run(2, any_mpi.flavour)
    any_mpi.record(run, 2, [*apart, str(any_mpi.compile("every_collective"))])
    headers = headers_of(run, 2)
    assert headers[0].clock_error_ns == 0
    error = headers[1].clock_error_ns
    assert error is not None
    assert error > 0
    assert abs(headers[0].clock_offset_ns - headers[1].clock_offset_ns) > 500_000_000, "the clocks did not differ"
    explained = explained_breakdown(run)
    assert explained.waiting is not None
    assert explained.waiting.matched > 0
    # No rank leaves a barrier before the last one arrives.
    assert explained.waiting.clock_conflicts == 0, "clocks disagree by more than the stated error"
    assert explained.waiting.clock_error_seconds == pytest.approx(error / 1e9)


def test_mpi4py_in_place_and_on_communicators_of_some_ranks(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(3)
    open_mpi.record(run, 3, [sys.executable, str(PROGRAMS / "communicators.py")])
    for rank, pair in ((0, 2), (1, 2), (2, 1)):
        profile, found = records(profile_of(run, rank))
        names = [profile.header.operations[code] for code in found["operation"]]
        assert list(zip(names, found["bytes"], sizes(profile, found), strict=True)) == [
            ("allreduce", 8192, 3),
            ("allreduce", 128, pair),
            ("broadcast", 32, pair),
        ]


def test_threads_record_concurrently(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    open_mpi.record(run, 1, [str(open_mpi.compile("threads")), "3000"])
    profile, found = records(profile_of(run, 0))
    assert profile.warnings == []
    assert len(found) == 4 * 3000
    assert sorted(Counter((found["buffer_and_thread"] >> np.uint64(48)).tolist()).values()) == [3000] * 4
    each = Counter((1 + i % 7) * INT for i in range(3000))
    assert Counter(found["bytes"].tolist()) == {size: 4 * calls for size, calls in each.items()}


def test_concurrent_non_blocking_collectives_in_many_threads(any_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1, any_mpi.flavour)
    any_mpi.record(run, 1, [str(any_mpi.compile("overlapping"))])
    events = read_recording(run).load()
    assert Counter(events.bytes.tolist()) == {(1 + i) * INT: 4 * 200 for i in range(8)}
    assert len(events.communicators) == 4
    for communicator in range(4):
        own = events.communicator == communicator
        assert np.sort(events.ordinal[own]).tolist() == list(range(8 * 200))
        # The n-th collective has the n-th size, regardless of the order of completion.
        assert (events.bytes[own] == (1 + events.ordinal[own] % 8) * INT).all()


def test_a_request_that_another_thread_reuses_at_its_completion_has_a_duration(tmp_path: Path) -> None:
    program = tmp_path / "reused_request"
    subprocess.run(["cc", *FLAGS, "-o", program, PROGRAMS / "reused_request.c"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def point_to_point_expected(rank: int) -> dict[str, list[int]]:
    """The bytes of each call on ranks 0 and 1 in point_to_point.c.

    A receive counts the size of its buffer.
    """
    both = {
        "send": [200 * INT, 0],
        "receive": [7 * INT, 2 * DOUBLE, 0],
        "isend": [200 * INT, 7 * INT, 2 * DOUBLE, 2 * INT],
        "ireceive": [200 * INT, 200 * INT, 2 * INT],
        "send-receive": [300 * INT, 400 * INT],
    }
    if rank == 0:
        both["send"] += [1000 * INT, 0, 3 * DOUBLE, 5 * INT]
    else:
        both["receive"] += [1000 * INT, 0, 3 * DOUBLE, 4096 * INT]
    return both


@pytest.mark.parametrize("size", [2, 3, 8])
def test_point_to_point_calls_are_counted_by_size(any_mpi: Mpi, make_run: MakeRun, size: int) -> None:
    check_point_to_point(any_mpi, make_run, size, "point_to_point")


def test_point_to_point_calls_with_large_counts_are_counted_by_size(
    mpi_with_large_counts: Mpi, make_run: MakeRun
) -> None:
    check_point_to_point(mpi_with_large_counts, make_run, 3, "point_to_point_large")


def test_counts_beyond_an_int_are_recorded(mpi_with_large_counts: Mpi, make_run: MakeRun) -> None:
    run = make_run(1, mpi_with_large_counts.flavour)
    mpi_with_large_counts.record(run, 1, [str(mpi_with_large_counts.compile("beyond_int"))])
    many = 2**31 + 5
    result = breakdown(run, "pow2")
    assert result.warnings == []
    assert {row.operation: row.bytes for row in result.rows} == {
        "broadcast": many,
        "ibroadcast": 2 * many,
        "allgather": many + 1,
        "allgatherv": many + 2,
        "alltoallw": many + 2,
        "reduce-scatter": many + 2,
    }
    assert {row.operation: row.bytes for row in result.point_to_point} == {"send": 1, "ireceive": many + 3}


def calls_by_size(run: RunFolder) -> dict[tuple[str, int], tuple[int, int]]:
    """Calls and bytes by operation and size class, including sends and receives."""
    result = breakdown(run, "pow2")
    assert result.warnings == []
    return {(row.operation, row.bytes_min): (row.calls, row.bytes) for row in [*result.rows, *result.point_to_point]}


def test_large_counts_work_with_an_mpi_library_that_has_none(open_mpi: Mpi, make_run: MakeRun) -> None:
    """A rank may use another MPI than the launcher: mpi4py then finds functions that its library
    lacks, and they must work.
    """
    run = make_run(3)
    results = []
    for large_counts in (False, True):
        replace(open_mpi, large_counts=large_counts).record(run, 3, [sys.executable, str(PROGRAMS / "every_call.py")])
        results.append(calls_by_size(run))
        for path in run.hvprof.iterdir():
            path.unlink()
    assert results[0] == results[1]


def test_unrecorded_large_counts_give_a_warning(mpich: Mpi, make_run: MakeRun) -> None:
    run = make_run(2, mpich.flavour)
    replace(mpich, large_counts=False).record(run, 2, [str(mpich.compile("every_collective_large"))])
    result = breakdown(run)
    assert [row.operation for row in result.rows] == ["barrier"]
    assert len(result.warnings) == 1
    assert "calls with large counts" in result.warnings[0]
    assert "ranks 0-1: the ranks' MPI library has them" in result.warnings[0]


def check_point_to_point(any_mpi: Mpi, make_run: MakeRun, size: int, program: str) -> None:
    run = make_run(size, any_mpi.flavour)
    any_mpi.record(run, size, [str(any_mpi.compile(program))])
    result = breakdown(run, "pow2")
    assert result.warnings == []
    assert [(row.operation, row.calls) for row in result.rows] == [("barrier", size)]
    counted: Counter[tuple[str, int | None]] = Counter()
    moved: Counter[str] = Counter()
    for row in result.point_to_point:
        counted[row.operation, row.bytes_max] += row.calls
        moved[row.operation] += row.bytes
        assert row.seconds > 0
    expected_calls: Counter[tuple[str, int | None]] = Counter()
    expected_bytes: Counter[str] = Counter()
    for rank in (0, 1):
        for operation, sizes in point_to_point_expected(rank).items():
            expected_bytes[operation] += sum(sizes)
            for count in sizes:
                expected_calls[operation, 1 << (count - 1).bit_length() if count else 0] += 1
    assert counted == expected_calls
    assert moved == expected_bytes


def test_counters_are_kept_per_thread_after_it_ends(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    open_mpi.record(run, 1, [str(open_mpi.compile("threads")), "30000"], HVPROF_MIB="1")
    profile, found = records(profile_of(run, 0))
    assert profile.overwritten == 4 * 30000 - len(found)
    assert profile.counters["calls"].sum() == 4 * 30000
    rows = breakdown(run, "pow2").rows
    sizes = [(1 + i % 7) * INT for i in range(30000)]
    assert {row.bytes_max: row.calls for row in rows} == {
        edge: 4 * count for edge, count in Counter(1 << (size - 1).bit_length() for size in sizes).items()
    }
    assert sum(row.bytes for row in rows) == 4 * sum(sizes)


@pytest.mark.parametrize("mib", ["1", "64"])
@pytest.mark.parametrize("threads", [1, 3])
def test_kills_at_random_times_lose_at_most_the_call_in_flight(
    open_mpi: Mpi, make_run: MakeRun, tmp_path: Path, threads: int, mib: str
) -> None:
    """Kills the program 13 times, 3 of them possibly before MPI_Init; it counts its returned calls
    in a file.
    """
    program = str(open_mpi.compile("until_killed"))
    run = make_run(1)
    random = np.random.default_rng()
    returned = tmp_path / "returned"
    for attempt in range(13):
        returned.write_bytes(bytes(16 * 64))
        for old in run.hvprof.iterdir():
            old.unlink()
        environment = open_mpi.environment({**preload_environment(run), "HVPROF_MIB": mib})
        with subprocess.Popen(
            [program, str(returned), str(threads)], env=environment, stderr=subprocess.DEVNULL
        ) as job:
            while attempt > 2 and not np.fromfile(returned, "<u8").any():
                assert job.poll() is None
                time.sleep(0.001)
            time.sleep(float(random.uniform(0, 1 if attempt < 3 else 0.1)))
            job.kill()
        made = np.fromfile(returned, "<u8")[::8][:threads]
        if not profile_of(run, 0).exists():
            assert made.sum() == 0
            assert attempt < 3
            continue
        profile, kept = records(profile_of(run, 0))
        assert profile.warnings == []
        threads_of = profile.counters["key"] >> np.uint64(16) & np.uint64(0xFFFF)
        counted = [int(profile.counters["calls"][threads_of == thread].sum()) for thread in range(threads)]
        # Threads are numbered in the order of their first calls.
        assert all(
            0 <= mine - made_calls <= 1 for mine, made_calls in zip(sorted(counted), sorted(made.tolist()), strict=True)
        )
        if not profile.overwritten:
            assert 0 <= len(kept) - made.sum() <= threads
        result = breakdown(run)
        assert sum(row.calls for row in result.rows) in range(int(made.sum()), int(made.sum()) + threads + 1)


def test_a_full_ring_overwrites_the_oldest_records(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    capacity = (1 << 20) // RECORD.itemsize
    open_mpi.record(run, 1, [str(open_mpi.compile("barriers")), "20000"], HVPROF_MIB="1")
    trim_profiles(run)
    profile, found = records(profile_of(run, 0))
    assert profile.overwritten == 20000 - capacity
    assert found["sequence"].tolist() == list(range(20000 - capacity + 1, 20001))
    result = breakdown(run)
    assert result.overwritten == 20000 - capacity
    assert [row.calls for row in result.rows] == [20000]
    assert len(result.warnings) == 1
    assert "HVPROF_MIB" in result.warnings[0]
    with pytest.raises(RequestError, match=r"lost 3616 single calls.*HVPROF_MIB"):
        compare(run, run)


def test_a_killed_rank_leaves_its_records(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(2)
    command = open_mpi.command(2, [str(open_mpi.compile("barriers")), "0"])
    with subprocess.Popen(
        command,
        env=open_mpi.environment(preload_environment(run)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as job:
        try:
            victim = wait_for_records(profile_of(run, 1), 1000)
            before = profile_of(run, 0).stat().st_size
            trim_profiles(run)
            assert profile_of(run, 0).stat().st_size == before, "a file in use was truncated"
            os.kill(victim, signal.SIGKILL)
            job.wait(timeout=HANG_SECONDS)
        finally:
            job.kill()
    assert job.returncode != 0
    for rank in range(2):
        assert records(profile_of(run, rank))[0].warnings == []
    calls = {row.rank: row.calls for row in breakdown(run).rank_rows}
    assert calls[1] >= 1000
    trim_profiles(run)
    assert {row.rank: row.calls for row in breakdown(run).rank_rows} == calls
    assert profile_of(run, 1).stat().st_size < 64 << 20


RESERVED_AT_ONCE = 16  # by a thread, which may not have written the last ones


def wait_for_records(path: Path, count: int) -> int:
    """Waits until `path` has `count` records; returns the process that writes it."""
    for _ in range(600):
        if path.exists():
            header = ProfileFile(path).header
            if header.reserved_records >= count + RESERVED_AT_ONCE:
                return header.pid
        time.sleep(0.05)
    raise AssertionError(f"{path} never had {count} records")


def test_children_do_not_write_to_their_parents_file(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    open_mpi.record(run, 1, [sys.executable, str(PROGRAMS / "forks.py")])
    assert list(run.hvprof.iterdir()) == [profile_of(run, 0)]
    assert len(records(profile_of(run, 0))[1]) == 2


def test_two_processes_never_share_a_file(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    for calls in ("3", "5"):
        open_mpi.record(run, 1, [str(open_mpi.compile("barriers")), calls])
    assert sorted(len(records(path)[1]) for path in run.hvprof.iterdir()) == [3, 5]
    assert [row.calls for row in breakdown(run).rows] == [8]


def test_a_job_continues_if_its_profile_cannot_be_written(open_mpi: Mpi, unwritable: Path) -> None:
    more = {"LD_PRELOAD": str(library_path()), "HVPROF_DIRECTORY": str(unwritable)}
    done = open_mpi.start(2, [str(open_mpi.compile("every_collective"))], more)
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "hvprof" in line]
    assert len(lines) == 2, "one line for each rank"
    assert all("the job continues without" in line for line in lines)
    assert not unwritable.exists() or list(unwritable.iterdir()) == []


def test_an_invalid_ring_size_warns_and_uses_the_default(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(1)
    more = {**preload_environment(run), "HVPROF_MIB": "much"}
    done = open_mpi.start(1, [str(open_mpi.compile("barriers")), "1"], more)
    assert "HVPROF_MIB=much" in done.stderr
    assert profile_of(run, 0).stat().st_size == RECORDS_START + (64 << 20)


def test_a_call_without_an_mpi_library_aborts_with_a_message() -> None:
    script = f"import ctypes; ctypes.CDLL({str(library_path())!r}).MPI_Barrier(0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert "no library in this process has PMPI_Barrier" in done.stderr


TINY_MPI = """
int {P}MPI_Init(int *argc, char ***argv) {{ return 0; }}
int {P}MPI_Allreduce(const void *in, void *out, int count, void *type, void *operation, void *communicator)
{{ return 0; }}
int {P}MPI_Finalize(void) {{ return 0; }}
"""
WRAPPERS = """
int PMPI_Init(int *, char ***), PMPI_Allreduce(const void *, void *, int, void *, void *, void *);
int MPI_Init(int *argc, char ***argv) { return PMPI_Init(argc, argv); }
int MPI_Allreduce(const void *in, void *out, int count, void *type, void *operation, void *communicator)
{ return PMPI_Allreduce(in, out, count, type, operation, communicator); }
"""
MINIMAL_PROGRAM = """
int MPI_Init(int *, char ***), MPI_Finalize(void);
int MPI_Allreduce(const void *, void *, int, void *, void *, void *);
int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int status = MPI_Allreduce(0, 0, 0, 0, 0, 0);
    MPI_Finalize();
    return status;
}
"""
LOADS_MPI = """
#include <dlfcn.h>
int main(int argc, char **argv)
{
    void *mpi = dlopen(LIBRARY, RTLD_NOW);
    ((int (*)(int *, char ***))dlsym(mpi, "MPI_Init"))(&argc, &argv);
    return ((int (*)(void))dlsym(mpi, "MPI_Finalize"))();
}
"""


@pytest.mark.parametrize(
    ("linked", "reason"),
    [
        ("static", "is linked statically"),
        ("with a static MPI", "contains a static MPI library"),
        ("at run time", "loads its MPI library at run time (dlopen)"),
        ("with wrappers", "contains another tool's wrappers of MPI"),
        ("with an MPI without PMPI", "the MPI library lacks a function of MPI 3.0 that hvprof needs"),
    ],
)
def test_an_mpi_that_cannot_be_recorded_is_reported(hvscale: Run, tmp_path: Path, linked: str, reason: str) -> None:
    """The job continues, however it was linked."""
    has_wrappers = linked == "with wrappers"
    (tmp_path / "mpi.c").write_text(TINY_MPI.format(P="") + (TINY_MPI.format(P="P") if has_wrappers else ""))
    (tmp_path / "wrappers.c").write_text(WRAPPERS)
    (tmp_path / "program.c").write_text(MINIMAL_PROGRAM)
    (tmp_path / "loads.c").write_text(LOADS_MPI)
    library = tmp_path / ("libmpi.so" if has_wrappers else "libtiny.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "mpi.c"], check=True)
    in_library: list[str | Path] = [library, f"-Wl,-rpath,{tmp_path}"]
    sources: dict[str, list[str | Path]] = {
        "static": ["-static", tmp_path / "program.c", tmp_path / "mpi.c"],
        "with a static MPI": [tmp_path / "program.c", tmp_path / "mpi.c"],
        "with wrappers": ["-s", tmp_path / "program.c", tmp_path / "wrappers.c", *in_library],
        "with an MPI without PMPI": [tmp_path / "program.c", *in_library],
        "at run time": [f'-DLIBRARY="{library}"', tmp_path / "loads.c", "-ldl"],
    }
    program = tmp_path / "program"
    subprocess.run(["cc", "-o", program, *sources[linked]], check=True)
    done = hvscale("profile", "-np", "2", "--run", str(tmp_path / "run"), "--", str(program))
    assert done.returncode == 4, done.stderr
    assert reason in done.stderr.splitlines()[-1]
    assert "no collective was recorded" in done.stderr


def test_files_of_different_jobs_are_rejected(open_mpi: Mpi, make_run: MakeRun) -> None:
    run = make_run(2)
    program = [str(open_mpi.compile("barriers")), "3"]
    open_mpi.record(run, 2, program)
    kept = profile_of(run, 1).read_bytes()
    for path in run.hvprof.iterdir():
        path.unlink()
    open_mpi.record(run, 2, program)
    assert sum(row.calls for row in breakdown(run).rows) == 6
    profile_of(run, 1).write_bytes(kept)
    with pytest.raises(RequestError, match=r"different runs: rank-0000\d\.hvp and rank-0000\d\.hvp"):
        breakdown(run)
