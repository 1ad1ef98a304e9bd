"""The NCCL plug-in, called as NCCL calls it: its records under each version of the interface, and
its failures.
"""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hvscale.bench.gpu_check.steps.knobs import choices
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.launch.flavours import all_rank_variables
from hvscale.profiling.analyze.breakdown import breakdown
from hvscale.profiling.analyze.explanation import explained_breakdown
from hvscale.profiling.read.nccl_file import (
    ENQUEUED,
    HEADER,
    ON_DEVICE,
    RECORD,
    SEEN_BY_HOST,
    NcclProfile,
    read_nccl_profile,
)
from hvscale.profiling.record import nccl_environment, nccl_plugin_path, trim_profiles
from tests.conftest import HANG_SECONDS, Run, run_json
from tests.native import FLAGS, NATIVE, NCCL_PLUGIN, SHARED_LIBRARY, sanitizer_runtime
from tests.profiling import synthetic
from tests.profiling.conftest import PROGRAMS, MakeRun
from tests.profiling.synthetic import head, profile, records, signed, signed_header

VERSIONS = range(1, 7)
CHANNEL_NS = 1000
# The calls of nccl_harness.c: function, data type, algorithm, protocol, count, channels; then the
# operation, and the bytes for 2 ranks
CALLS = [
    (b"AllReduce", b"ncclFloat32", b"RING", b"SIMPLE", 1 << 20, 4, "allreduce", 4 << 20),
    (b"AllReduce", b"ncclFloat16", b"TREE", b"LL", 100, 1, "allreduce", 200),
    (b"Broadcast", b"ncclInt8", b"RING", b"LL128", 4096, 2, "broadcast", 4096),
    (b"AllGather", b"ncclInt8", b"NVLS", b"SIMPLE", 500, 2, "allgather", 1000),
    (b"ReduceScatter", b"ncclBfloat16", b"COLLNET_DIRECT", b"SIMPLE", 64, 3, "reduce-scatter", 256),
    (b"Reduce", b"ncclFloat64", b"RING", b"LL", 9, 1, "reduce", 72),
    (b"Send", b"ncclInt32", b"", b"", 10, 2, "send", 40),
    (b"Recv", b"ncclInt32", b"", b"", 10, 2, "receive", 40),
]
NAMED = ("function", "datatype", "algorithm", "protocol", "count")


def timing(version: int) -> int:
    """How calls are timed under a version of the interface."""
    return ENQUEUED if version < 3 else SEEN_BY_HOST if version == 3 else ON_DEVICE


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("nccl") / "nccl_harness"
    subprocess.run(["cc", *FLAGS, "-o", str(program), str(PROGRAMS / "nccl_harness.c"), "-ldl"], check=True)
    return program


def start(
    harness: Path,
    version: int,
    *more: object,
    rank: int = 0,
    plugin: Path | None = None,
    before: Sequence[str] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs the harness as rank `rank` of 2; `before`: words in front of the command."""
    command = [*before, str(harness), str(plugin or nccl_plugin_path()), str(version), *map(str, more)]
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMI", "HOROVOD_"))}
    inside = {**plain, "HVPROF_MIB": "1", "RANK": str(rank), "WORLD_SIZE": "2", **environment}
    return subprocess.run(command, env=inside, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def record(harness: Path, run: RunFolder, version: int, *more: object, rank: int = 0) -> NcclProfile:
    done = start(harness, version, *more, rank=rank, HVPROF_DIRECTORY=str(run.hvprof))
    assert done.returncode == 0, done.stderr
    return read_nccl_profile(profile_of(run, rank))


def profile_of(run: RunFolder, rank: int) -> Path:
    return run.hvprof / f"nccl-{rank:05d}.hvn"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_call_is_recorded_under_every_version(harness: Path, make_run: MakeRun, version: int) -> None:
    threads, rounds = 4, 50
    run = make_run(2, "NCCL")
    for rank in range(2):
        found = record(harness, run, version, threads, rounds * len(CALLS), rank=rank)
        assert (found.rank, found.job_size, found.interface, found.warnings) == (rank, 2, version, [])
        records = found.records
        expected = Counter({call[:5]: threads * rounds for call in CALLS[:6]})
        expected.update({call[:5]: threads * rounds for call in CALLS[6:]})
        assert Counter(records[list(NAMED)].tolist()) == expected
        assert (records["duration_ns"] > 0).all()
        assert set(records["communicator"].tolist()) == {0xC0FFEE00 + thread for thread in range(threads)}
        assert (records["communicator_rank"] == rank).all()
        assert (records["communicator_size"] == (0 if version < 4 else 2)).all()
        assert (records["timing"] == timing(version)).all()
        for call in CALLS:
            of_call = records[(records["function"] == call[0]) & (records["count"] == call[4])]
            reported = version >= 3 or call[0] not in (b"Send", b"Recv")
            assert (of_call["channels"] == (call[5] if reported else 0)).all()
            if version >= 4:
                assert (of_call["duration_ns"] == CHANNEL_NS * call[5]).all()

    result = breakdown(run)
    assert result.source == "nccl"
    assert result.ranks == [0, 1]
    assert len(result.warnings) == (1 if version < 4 else 0)
    for operation in {call[6] for call in CALLS}:
        rows = [row for row in result.rows if row.operation == operation]
        of_operation = [call for call in CALLS if call[6] == operation]
        assert sum(row.calls for row in rows) == 2 * threads * rounds * len(of_operation)
        assert sum(row.bytes for row in rows) == 2 * threads * rounds * sum(call[7] for call in of_operation)


def test_a_rank_that_the_job_does_not_have_is_on_an_unknown_node(harness: Path, make_run: MakeRun) -> None:
    run = make_run(2, "NCCL")
    record(harness, run, 6, 1, len(CALLS), rank=3)
    assert [(row.rank, row.node) for row in explained_breakdown(run).by_rank] == [(3, "unknown node")]


def test_check_gpu_reads_what_nccl_chose(harness: Path, make_run: MakeRun) -> None:
    run = make_run(2, "NCCL")
    for rank in range(2):
        record(harness, run, 6, 1, len(CALLS), rank=rank)
    assert choices(run) == {call[2:4] + call[5:6] for call in CALLS if call[0] == b"AllReduce"}


def test_the_plug_in_exports_one_table_per_version() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(nccl_plugin_path())], capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in listed.splitlines()} == {f"ncclProfiler_v{version}" for version in VERSIONS}


def test_copy_engine_collectives_and_unknown_names_are_recorded(make_run: MakeRun, tmp_path: Path) -> None:
    """Calls without kernels have the host's time. Unknown functions are "other", with a warning."""
    program, plugin = tmp_path / "copy_engine", tmp_path / "plugin.so"
    subprocess.run(["cc", *FLAGS, *SHARED_LIBRARY, "-o", plugin, *NCCL_PLUGIN], check=True)
    subprocess.run(["cc", *FLAGS, "-o", str(program), str(PROGRAMS / "nccl_copy_engine.c"), "-ldl"], check=True)
    run = make_run(2, "NCCL")
    done = start(program, 6, plugin=plugin, HVPROF_DIRECTORY=str(run.hvprof))
    assert done.returncode == 0, (done.returncode, done.stderr)
    records = read_nccl_profile(profile_of(run, 0)).records
    assert records["function"].tolist() == [b"AlltoAll", b"Everything"]
    assert records["algorithm"].tolist() == [b"COPY_ENGINE", b"AN_ALGORITHM_OF_"]
    assert records["timing"].tolist() == [ENQUEUED, ENQUEUED]
    result = breakdown(run)
    assert {(row.operation, row.bytes) for row in result.rows} == {("alltoall", 2 * 4 * 100), ("other", 0)}
    assert any("unknown size" in warning for warning in result.warnings)


def test_a_full_ring_overwrites_the_oldest_records(harness: Path, make_run: MakeRun) -> None:
    run = make_run(1, "NCCL")
    capacity = (1 << 20) // RECORD.itemsize
    found = record(harness, run, 6, 2, capacity)
    assert (found.overwritten, len(found.records)) == (capacity, capacity)
    assert found.records["sequence"].tolist() == list(range(capacity + 1, 2 * capacity + 1))
    result = breakdown(run)
    assert (result.overwritten, result.incomplete) == (capacity, None)
    assert sum(row.calls for row in result.rows) == capacity
    assert any("the table lacks them: set HVPROF_MIB" in warning for warning in result.warnings)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_killed_process_leaves_its_records(harness: Path, make_run: MakeRun, version: int) -> None:
    run = make_run(2, "NCCL")
    done = start(harness, version, 3, 800, "kill", HVPROF_DIRECTORY=str(run.hvprof))
    assert done.returncode == -signal.SIGKILL
    found = read_nccl_profile(profile_of(run, 0))
    # Version 3 does not report the end of a kernel: a call ends 64 calls later.
    assert 3 * 800 - (64 if version == 3 else 0) <= len(found.records) <= 3 * 800
    assert found.warnings == []
    size = profile_of(run, 0).stat().st_size
    trim_profiles(run)
    assert profile_of(run, 0).stat().st_size == HEADER.itemsize + len(found.records) * RECORD.itemsize < size
    again = read_nccl_profile(profile_of(run, 0))
    assert np.array_equal(again.records, found.records)


def test_a_process_killed_during_a_call_leaves_intact_records(harness: Path, make_run: MakeRun) -> None:
    run = make_run(2, "NCCL")
    command = [str(harness), str(nccl_plugin_path()), "6", "3", "1000000"]
    environment = {**os.environ, "HVPROF_MIB": "64", "RANK": "0", "WORLD_SIZE": "2", **nccl_environment(run, {})}
    with subprocess.Popen(command, env=environment) as process:
        try:
            while not profile_of(run, 0).exists() or read_nccl_profile(profile_of(run, 0)).recorded < 1000:
                assert process.poll() is None
            trim_profiles(run)
            assert profile_of(run, 0).stat().st_size == HEADER.itemsize + (64 << 20), "a file in use was truncated"
        finally:
            process.send_signal(signal.SIGKILL)
    found = read_nccl_profile(profile_of(run, 0))
    assert found.warnings == []
    assert len(found.records) >= min(found.recorded, found.capacity) - 1


def test_nccl_continues_if_its_profile_cannot_be_written(harness: Path, unwritable: Path) -> None:
    done = start(harness, 6, 4, 100, HVPROF_DIRECTORY=str(unwritable))
    assert done.returncode == 0
    assert done.stdout == "0\n", "events were requested"
    assert len(done.stderr.splitlines()) == 1
    assert "the job continues without" in done.stderr
    assert not unwritable.exists() or list(unwritable.iterdir()) == []


def test_nccl_continues_under_a_limit_on_file_sizes(harness: Path, tmp_path: Path) -> None:
    done = start(harness, 6, 4, 100, before=["prlimit", "--fsize=100000"], HVPROF_DIRECTORY=str(tmp_path))
    assert done.returncode == 0, "it was killed by SIGXFSZ"
    assert len(done.stderr.splitlines()) == 1
    assert "(File too large): the job continues without" in done.stderr


def test_a_header_that_claims_a_terabyte_reads_the_actual_file(harness: Path, make_run: MakeRun) -> None:
    run = make_run(1, "NCCL")
    intact = record(harness, run, 6, 4, 100)
    content = profile_of(run, 0).read_bytes()
    header = np.frombuffer(content, HEADER, count=1).copy()
    header["capacity"] = header["recorded"] = 2**33
    profile_of(run, 0).write_bytes(signed_header(header).tobytes() + content[HEADER.itemsize :])
    forged = read_nccl_profile(profile_of(run, 0))
    assert len(forged.records) == len(intact.records)
    assert "is damaged or truncated" in forged.warnings[0]


def test_the_users_plug_in_is_kept(make_run: MakeRun) -> None:
    run = make_run(1, "NCCL")
    assert nccl_environment(run, {"NCCL_PROFILER_PLUGIN": "other"}) == {}
    assert nccl_environment(run, {}) == {
        "NCCL_PROFILER_PLUGIN": str(nccl_plugin_path()),
        "HVPROF_DIRECTORY": str(run.hvprof),
    }


@pytest.mark.parametrize(("options", "recorded"), [((), True), (("--env", "NCCL_PROFILER_PLUGIN=other"), False)])
def test_a_profiled_launch_also_records_nccl(
    hvscale: Run, tmp_path: Path, options: tuple[str, ...], recorded: bool
) -> None:
    done = hvscale("profile", "--mpi", "gloo", "--run", "job", *options, "--", "true")
    assert done.returncode == 0, done.stderr
    added = run_json(tmp_path / "job")["rank_environment"]
    assert ("NCCL_PROFILER_PLUGIN" in added) == recorded
    assert "HOROVOD_TIMELINE" in added


def test_two_processes_of_a_rank_never_share_a_file(harness: Path, make_run: MakeRun) -> None:
    run = make_run(1, "NCCL")
    for calls in (3, 5):
        record(harness, run, 6, 1, calls)
    assert sorted(len(read_nccl_profile(path).records) for path in run.hvprof.iterdir()) == [3, 5]


def test_nccl_calls_take_precedence_over_mpi(harness: Path, make_run: MakeRun) -> None:
    run = make_run(1)
    (run.hvprof / "rank-00000.hvp").write_bytes(profile(10))
    record(harness, run, 6, 1, 0)
    assert breakdown(run).source == "hvprof"
    profile_of(run, 0).unlink()
    record(harness, run, 6, 1, 8)
    result = breakdown(run)
    assert result.library.startswith("NCCL, beside ")
    assert result.source == "nccl"
    assert any(warning.startswith("MPI carried ") for warning in result.warnings)


def test_marks_of_steps_are_not_asked_for_under_nccl(harness: Path, make_run: MakeRun) -> None:
    run = make_run(1, "NCCL")
    record(harness, run, 6, 1, len(CALLS))
    reason = explained_breakdown(run).unavailable["exposed_communication"]
    assert reason == "the run has no steps: write steps.jsonl (nccl records no step marks)"


def test_steps_are_inferred_from_nccls_calls(harness: Path, make_run: MakeRun) -> None:
    run, rounds = make_run(1, "NCCL"), 12
    records = record(harness, run, 6, 1, rounds * len(CALLS)).records.copy()
    # The harness makes its calls at once: here one call ends before the next one begins.
    number = np.arange(len(records), dtype=np.uint64)
    records["start_ns"] = records["start_ns"].min() + number * 1_000_000 + number // len(CALLS) * 10_000_000
    header = profile_of(run, 0).read_bytes()[: HEADER.itemsize]
    profile_of(run, 0).write_bytes(header + synthetic.signed(records).tobytes())
    exposed = explained_breakdown(run).exposed_communication
    assert exposed is not None
    assert (exposed.step_count, exposed.mean_share_at_least) == (rounds - 1, 0)
    assert exposed.mean_step_seconds == pytest.approx(0.018, rel=0.01)


def test_mpi_beside_nccl_is_known_from_counters_alone(harness: Path, make_run: MakeRun) -> None:
    run = make_run(1)
    record(harness, run, 6, 1, 8)
    (run.hvprof / "rank-00000.hvp").write_bytes(profile(10))
    by_calls = breakdown(run).warnings
    (run.hvprof / "rank-00000.hvp").write_bytes(head(0, 0, 0, records(10)))
    assert breakdown(run).warnings == by_calls
    assert by_calls[0].startswith("MPI carried ")


def test_a_lost_profile_makes_the_table_incomplete(harness: Path, make_run: MakeRun) -> None:
    run = make_run(2, "NCCL")
    for rank in range(2):
        record(harness, run, 6, 1, 400, rank=rank)
    assert breakdown(run).incomplete is None
    path = profile_of(run, 1)
    content = path.read_bytes()
    for left, why in (
        (content[: HEADER.itemsize + 100 * RECORD.itemsize], f"{path} is damaged or truncated: 100 of 400 records"),
        (content[: HEADER.itemsize // 2], str(path)),
        (None, "no NCCL profile of rank 1: it made no communicator, or its file is lost"),
    ):
        path.unlink() if left is None else path.write_bytes(left)
        table = breakdown(run)
        assert table.incomplete is not None
        assert why in table.incomplete
        assert table.incomplete == "; ".join(table.warnings)


def test_the_few_bytes_of_mpi_beside_nccl_are_no_warning(harness: Path, make_run: MakeRun) -> None:
    """Horovod's ranks set themselves up and negotiate by MPI."""
    run = make_run(1)
    made = records(3)
    made["bytes"] = 8
    content = head(3, 1 << 20, 0, made) + signed(made).tobytes()
    (run.hvprof / "rank-00000.hvp").write_bytes(content)
    record(harness, run, 6, 1, 4000)
    assert breakdown(run).warnings == []
    (run.hvprof / "rank-00000.hvp").write_bytes(content[:100])
    assert any("rank-00000.hvp" in warning for warning in breakdown(run).warnings)


@pytest.mark.parametrize(
    ("at", "what"), [(0, "is not a profile"), (8, "version"), (70, "checksum"), (4096 + 9, "none of its")]
)
def test_a_damaged_file_is_rejected(harness: Path, make_run: MakeRun, at: int, what: str) -> None:
    run = make_run(1, "NCCL")
    record(harness, run, 6, 1, 2)
    raw = bytearray(profile_of(run, 0).read_bytes())
    for record_at in (0, 128) if at > 4096 else (0,):
        raw[at + record_at] ^= 1
    profile_of(run, 0).write_bytes(raw)
    with pytest.raises(RequestError, match=what):
        breakdown(run)


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(make_run: MakeRun, tmp_path: Path, sanitizer: str) -> None:
    plugin, harness = tmp_path / "libhvprof-nccl.so", tmp_path / "nccl_harness"
    flags = [*FLAGS, f"-fsanitize={sanitizer}"]
    runtime = {"address,undefined": "libasan.so", "thread": "libtsan.so"}[sanitizer]
    sanitizer_runtime(runtime)
    subprocess.run(["cc", *flags, *SHARED_LIBRARY, "-Wl,-z,nodelete", "-o", plugin, *NCCL_PLUGIN], check=True)
    subprocess.run(["cc", *flags, "-o", str(harness), str(PROGRAMS / "nccl_harness.c"), "-ldl"], check=True)
    run = make_run(1, "NCCL")
    for version in VERSIONS:
        done = start(harness, version, 4, 200, plugin=plugin, HVPROF_DIRECTORY=str(run.hvprof))
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    assert all(len(read_nccl_profile(path).records) == 800 for path in run.hvprof.iterdir())


def test_the_plug_in_knows_every_flavours_rank_variables() -> None:
    """The C code has a copy of the flavours' variables."""
    source = (NATIVE / "nccl_plugin" / "calls_in_flight.c").read_text()
    for variables in all_rank_variables():
        assert f'{{"{variables.rank}", "{variables.size}"}}' in source
