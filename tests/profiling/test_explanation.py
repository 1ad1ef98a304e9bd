"""The explanation of a breakdown, as a document and in the terminal, from synthetic profiles."""

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from hvscale.cli.console import print_breakdown
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze import explanation
from hvscale.profiling.analyze.explanation import ExplainedBreakdown, explained_breakdown
from hvscale.profiling.read.profile_file import NO_COMMUNICATOR, RECORD, STEP
from hvscale.studies.run_report.explanation_tables import explanation_tables
from tests.conftest import Run
from tests.profiling import synthetic
from tests.profiling.conftest import MakeRun

ALLREDUCE = 13
PAIR = 1  # the communicator of two ranks
MILLISECOND = 10**6
ROUNDS = 50
LATE, TRANSFER, EVERY = 3 * MILLISECOND, MILLISECOND, 10 * MILLISECOND


def rounds(rank: int) -> NDArray[Any]:
    """Alternates step marks and all-reduces, with rank 1 late for each all-reduce.

    Rank 0 calls from the thread that marks, rank 1 from another.
    """
    found = np.zeros(2 * ROUNDS + 1, RECORD)
    found["sequence"] = np.arange(1, len(found) + 1)
    marks, calls = found[::2], found[1::2]
    marks["operation"], marks["communicator"] = STEP, NO_COMMUNICATOR
    marks["start_ns"] = synthetic.START_NS + np.arange(ROUNDS + 1) * EVERY
    calls["operation"], calls["communicator"], calls["bytes"] = ALLREDUCE, PAIR, 4096
    calls["ordinal"] = np.arange(ROUNDS)
    calls["start_ns"] = marks["start_ns"][:-1] + MILLISECOND + rank * LATE
    calls["duration_ns"] = TRANSFER + (1 - rank) * LATE
    calls["buffer_and_thread"] = rank << 48 | (4096 * (1 + np.arange(ROUNDS) % 20))
    return synthetic.signed(found)


def write(
    run: RunFolder,
    rank: int,
    records: NDArray[Any],
    clock_error_ns: int = 0,
    job: int = 0,
    suffix: str = "",
    world_size: int = 2,
) -> None:
    header = synthetic.header(len(records), 1 << 20, rank)
    header["clock_error_ns"], header["job"], header["world_size"] = clock_error_ns, job, world_size
    header["operations"][0, STEP] = b"step"
    parts = (synthetic.signed_header(header), synthetic.communicators(), synthetic.counters(records), records)
    (run.hvprof / f"rank-{rank:05d}{suffix}.hvp").write_bytes(b"".join(part.tobytes() for part in parts))


@pytest.fixture
def run(make_run: MakeRun) -> RunFolder:
    made_run = make_run(2)
    for rank in range(2):
        write(made_run, rank, rounds(rank))
    return made_run


def shown(result: ExplainedBreakdown) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        for part in explanation_tables(result):
            console.print(part)
    return capture.get()


def test_the_document(run: RunFolder) -> None:
    document = json.loads(explained_breakdown(run).model_dump_json(by_alias=True))
    assert document["schema"] == "hvscale/breakdown/1"
    assert document["rows"][0]["calls"] == 2 * ROUNDS
    (row,) = document["waiting"]["operations"]
    assert (row["operation"], row["bitwise"], row["calls"]) == ("allreduce", False, 2 * ROUNDS)
    assert row["waiting_seconds"] == pytest.approx(ROUNDS * LATE / 1e9)
    assert row["transfer_seconds"] == pytest.approx(2 * ROUNDS * TRANSFER / 1e9)
    (late,) = document["waiting"]["late_ranks"]
    assert (late["rank"], late["times_last"], late["mean_seconds"]) == (1, ROUNDS, pytest.approx(LATE / 1e9))
    assert document["waiting"]["clock_error_seconds"] == 0
    exposed = document["exposed_communication"]
    assert (exposed["basis"], exposed["ranks"], len(exposed["steps"])) == ("calls", [0, 1], ROUNDS)
    # A mean of rank 0, with 4 of 10 ms exposed, and rank 1, with 0 to 1 ms exposed.
    assert exposed["mean_share_at_least"] == pytest.approx((0.4 + 0) / 2)
    assert exposed["median_share_at_most"] == pytest.approx((0.4 + 0.1) / 2)
    assert {rate["capacity_entries"]: rate["hits"] for rate in document["buffer_reuse"]} == {
        16: 0,
        **dict.fromkeys((64, 1024, 8192), 2 * (ROUNDS - 20)),
    }
    assert document["horovod_phases"] is None
    assert set(document["unavailable"]) == {"horovod_phases"}
    assert document["warnings"] == []


def test_the_document_has_the_measurement_of_the_program(run: RunFolder) -> None:
    run.steps.write_text('{"seconds": 0.5, "communication_seconds": 0.1}\n' * 3)
    found = explained_breakdown(run).exposed_communication
    assert found is not None
    assert found.basis == "measured"
    assert found.mean_share_at_least == pytest.approx(0.2)
    run.steps.write_text("nonsense\n")
    # The marks in the profiles are still used. Without marks, the damaged file is the reason.
    damaged = explained_breakdown(run).exposed_communication
    assert damaged is not None
    assert damaged.basis == "calls"
    for rank in range(2):
        write(run, rank, unmarked(rank))
    assert "line 1" in explained_breakdown(run).unavailable["exposed_communication"]


def unmarked(rank: int) -> NDArray[Any]:
    calls = rounds(rank)[1::2].copy()
    calls["sequence"] = np.arange(1, len(calls) + 1)
    return synthetic.signed(calls)


def test_a_clock_jump_warns_and_excludes_collectives(run: RunFolder) -> None:
    jump, error = 200 * MILLISECOND, 5000
    jumped = rounds(1)
    jumped["start_ns"][ROUNDS + 1 :] += jump
    write(run, 1, synthetic.signed(jumped), error)
    result = explained_breakdown(run)
    assert result.waiting is not None
    assert (result.waiting.matched, result.waiting.clock_conflicts) == (ROUNDS // 2, ROUNDS // 2)
    assert result.waiting.operations[0].waiting_seconds == pytest.approx(ROUNDS / 2 * LATE / 1e9)
    (warning,) = result.warnings
    assert "ranks 0 and 1 (by at least 199 ms)" in warning
    assert "should agree to 5 us" in warning
    assert f"{ROUNDS // 2} collectives" in warning
    assert result.rows[0].calls == 2 * ROUNDS, "the table counts them, too"
    write(run, 1, synthetic.signed(jumped), 2 * jump)
    assert explained_breakdown(run).warnings == []


def test_the_time_between_two_programs_of_a_rank_is_no_step(run: RunFolder) -> None:
    for rank in range(2):
        second = rounds(rank)[:21]
        second["start_ns"] += 1000 * EVERY
        write(run, rank, synthetic.signed(second), suffix=".99")
    found = explained_breakdown(run)
    assert found.exposed_communication is not None
    assert found.exposed_communication.step_count == ROUNDS
    assert found.exposed_communication.mean_step_seconds == pytest.approx(EVERY / 1e9)
    assert [row.steps for row in found.by_rank] == [ROUNDS] * 2


def test_ranks_of_spawned_processes_do_not_hide_the_waiting(run: RunFolder) -> None:
    """The job has two ranks, and a process that it spawned has the rank 2 in its own world."""
    write(run, 2, rounds(0)[:3], job=7, world_size=3)
    found = explained_breakdown(run)
    assert found.waiting is not None
    assert found.waiting.matched == ROUNDS
    assert ["which this job's ranks started" in warning for warning in found.warnings] == [True]


def test_a_rank_that_does_not_know_its_job_is_in_that_of_the_others(run: RunFolder) -> None:
    write(run, 0, rounds(0), job=7)
    found = explained_breakdown(run)
    assert found.waiting is not None, found.unavailable
    assert found.waiting.matched == ROUNDS


def test_an_unavailable_part_is_null_with_its_reason(make_run: MakeRun) -> None:
    run = make_run(2)
    record = run.read()
    record.rank_environment["HVPROF_DIRECTORY"] = str(run.hvprof)
    run.write(record)
    empty = explained_breakdown(run)
    assert set(empty.unavailable) == {"waiting", "exposed_communication", "buffer_reuse", "horovod_phases"}
    assert shown(empty) == ""
    write(run, 0, unmarked(0))
    alone = explained_breakdown(run)
    assert (alone.waiting, alone.exposed_communication) == (None, None)
    assert "each of its ranks" in alone.unavailable["waiting"]
    assert "hvscale.profiling.step()" in alone.unavailable["exposed_communication"]
    assert "--timeline" in alone.unavailable["horovod_phases"]
    assert alone.buffer_reuse is not None
    run.timeline.write_text("nothing of the kind")
    assert "not a timeline" in explained_breakdown(run).unavailable["horovod_phases"]
    (run.hvprof / "rank-00000.hvp").write_bytes(b"")
    with pytest.raises(RequestError):
        explained_breakdown(run)


def test_a_large_run_is_explained_on_request(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = 2 * (2 * ROUNDS + 1)
    monkeypatch.setattr(explanation, "MAX_EXPLAINED_BYTES", records * RECORD.itemsize)
    # Only the used part of a ring counts.
    with (run.hvprof / "rank-00000.hvp").open("ab") as stream:
        stream.truncate(4 << 20)
    assert explained_breakdown(run).waiting is not None
    monkeypatch.setattr(explanation, "MAX_EXPLAINED_BYTES", records * RECORD.itemsize - 1)
    skipped = explained_breakdown(run)
    assert (skipped.waiting, skipped.explained) == (None, False)
    assert f"`hvscale breakdown {run.path} --explain` adds them, in about " in skipped.unavailable["waiting"]
    print_breakdown(skipped)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert line.endswith(skipped.unavailable["waiting"])
    assert skipped.rows == explained_breakdown(run, explained=True).rows
    assert explained_breakdown(run, explained=True).waiting is not None


def test_the_terminal_output(hvscale: Run, run: RunFolder) -> None:
    text = hvscale("breakdown", run.path, COLUMNS="80").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for expected in (
        "last rank to arrive, of 50 collectives; the ranks read one clock",
        "exposed communication: 20 to 25 % of a step",
        "64, 1024, 8192 buffers",
    ):
        assert expected in text
    assert "last rank to arrive" not in hvscale("breakdown", run.path, "--no-explain").stdout
    skipped = hvscale("breakdown", run.path, "--no-explain", "--json")
    assert skipped.stderr == ""
    plain = json.loads(skipped.stdout)
    assert plain["waiting"] is None
    assert plain["rows"] == json.loads(hvscale("breakdown", run.path, "--json").stdout)["rows"]


def test_hundreds_of_late_ranks_take_a_few_lines(make_run: MakeRun) -> None:
    ranks = 64
    run = make_run(ranks)
    world = 2  # the communicator of 64 ranks
    for rank in range(ranks):
        calls = np.zeros(ranks, RECORD)
        calls["sequence"], calls["ordinal"] = np.arange(1, ranks + 1), np.arange(ranks)
        calls["operation"], calls["communicator"], calls["bytes"] = ALLREDUCE, world, 8
        late = np.arange(ranks) == rank  # each once
        calls["start_ns"] = synthetic.START_NS + np.arange(ranks) * EVERY + late * LATE
        calls["duration_ns"] = LATE + TRANSFER - late * LATE
        write(run, rank, synthetic.signed(calls))
    result = explained_breakdown(run)
    assert result.waiting is not None
    assert len(result.waiting.late_ranks) == ranks
    assert "56 more" in shown(result)
    assert len(shown(result).splitlines()) < 30
