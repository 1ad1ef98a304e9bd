"""Profiles of many ranks with a known analysis, whole and with some of the files damaged."""

import gc
import json
import subprocess
import sys
import tempfile
import tracemalloc
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.core.run_folder import RunFolder
from hvscale.core.units import human_seconds
from hvscale.profiling import compare as compare_module
from hvscale.profiling.analyze import breakdown, collectives
from hvscale.profiling.analyze.explanation import explained_breakdown
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.compare import Comparison, ProfiledRun, compare, compare_profiled_runs, read_profiled_run
from hvscale.profiling.read import passes, profile_file
from hvscale.profiling.read.events import concatenate
from hvscale.profiling.read.passes import between, in_order_of_start, latest
from hvscale.profiling.read.profile_file import COMMUNICATOR, HEADER, RECORD, RECORDS_START, ProfileFile
from hvscale.profiling.read.sources import hvprof
from tests.conftest import HANG_SECONDS, Run
from tests.profiling import synthetic

GENERATOR = Path(__file__).parents[2] / "benchmarks" / "generate_profiles.py"
HOUR_NS = 3600 * 10**9
Generate = Callable[..., RunFolder]


@pytest.fixture
def generate(tmp_path: Path) -> Generate:
    def made(ranks: int, calls: int, name: str = "generated", capacity: int | None = None) -> RunFolder:
        folder = tmp_path / name
        more = [] if capacity is None else ["--capacity", str(capacity)]
        command = [sys.executable, str(GENERATOR), "--ranks", str(ranks), "--calls", str(calls), *more, str(folder)]
        subprocess.run(command, check=True, timeout=HANG_SECONDS)
        return RunFolder.open(folder)

    return made


def expected(run: RunFolder) -> Any:
    return json.loads((run.path / "expected.json").read_text())


def check_rows(rows: list[dict[str, Any]], run: RunFolder) -> None:
    """Compares calls, bytes and seconds of rows with one bin for each operation and size."""
    found = {(row["operation"], row["bytes_max"]): row for row in rows}
    assert len(found) == len(rows)
    for known in expected(run)["rows"]:
        row = found.pop((known["operation"], known["size"]))
        assert (row["calls"], row["bytes"]) == (known["calls"], known["bytes"])
        assert row["seconds"] == pytest.approx(known["ns"] / 1e9)
    assert not found


def check_waiting(waiting: Any, run: RunFolder) -> None:
    known = expected(run)
    assert (waiting["matched"], waiting["unmatched_calls"], waiting["clock_conflicts"]) == (known["matched"], 0, 0)
    rows = {(row["operation"], row["bitwise"]): row for row in waiting["operations"]}
    assert len(rows) == len(known["waiting"])
    for one in known["waiting"]:
        row = rows[one["operation"], one["bitwise"]]
        assert row["calls"] == one["calls"]
        assert row["waiting_seconds"] == pytest.approx(one["waiting_ns"] / 1e9)
        assert row["transfer_seconds"] == pytest.approx(one["transfer_ns"] / 1e9)
    late = {row["rank"]: row for row in waiting["late_ranks"]}
    assert len(late) == len(known["late_ranks"])
    for one in known["late_ranks"]:
        assert late[one["rank"]]["times_last"] == one["times"]
        assert late[one["rank"]]["total_seconds"] == pytest.approx(one["caused_ns"] / 1e9)


@pytest.mark.parametrize(("ranks", "calls"), [(64, 2000), (512, 200)])
def test_the_known_answers_come_out(hvscale: Run, generate: Generate, ranks: int, calls: int) -> None:
    run = generate(ranks, calls)
    done = hvscale("breakdown", run.path, "--json", "--explain", "--bins", "pow2")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["ranks"] == list(range(ranks))
    check_rows(document["rows"], run)
    by_rank: defaultdict[int, int] = defaultdict(int)
    for row in document["rank_rows"]:
        by_rank[row["rank"]] += row["calls"]
    assert by_rank == dict.fromkeys(range(ranks), calls)
    check_waiting(document["waiting"], run)
    exposed = document["exposed_communication"]
    assert len(exposed["ranks"]) == ranks
    assert exposed["mean_share_at_least"] == exposed["mean_share_at_most"]
    assert exposed["mean_share_at_most"] == pytest.approx(expected(run)["exposed_share"])
    assert document["buffer_reuse"][0]["messages"] == ranks * calls


def test_counters_alone_give_the_known_answers(hvscale: Run, generate: Generate) -> None:
    run = generate(64, 1000, "counters", capacity=0)
    done = hvscale("breakdown", run.path, "--json", "--explain", "--bins", "pow2")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    check_rows(document["rows"], run)
    exposed = document["exposed_communication"]
    assert (exposed["basis"], exposed["step_count"], exposed["steps"]) == ("counters", 20, [])
    assert exposed["mean_share_at_least"] == exposed["mean_share_at_most"]
    assert exposed["mean_share_at_most"] == pytest.approx(expected(run)["exposed_share"])
    compared = compare(generate(64, 1000), run)
    assert (compared.per, compared.steps_before, compared.steps_after) == ("step", 20, 20)
    for row in [*compared.rows, compared.total]:
        assert row.calls_before == pytest.approx(row.calls_after)
        assert row.seconds_before == pytest.approx(row.seconds_after)
        assert row.verdict == "unknown"


def test_any_division_into_pieces_gives_the_same_answers(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    run = generate(16, 1500)
    whole = explained_breakdown(run, "pow2", explained=True)
    monkeypatch.setattr(hvprof, "PIECE", 1 << 14)
    for shortest, longest in ((4, 4), (52, 1000)):
        monkeypatch.setattr(collectives, "ROUND_CALLS", 1)
        monkeypatch.setattr(collectives, "SHORTEST_READ", shortest)
        monkeypatch.setattr(collectives, "LONGEST_READ", longest)
        pieces = explained_breakdown(run, "pow2", explained=True)
        assert pieces.waiting == whole.waiting
        check_waiting(pieces.model_dump()["waiting"], run)
        assert pieces.exposed_communication is not None
        assert pieces.exposed_communication.mean_share_at_most == pytest.approx(expected(run)["exposed_share"])
        assert pieces.rows == whole.rows


def test_a_batch_of_collectives_is_freed_at_once(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the next garbage collection, which may come only after memory is full."""
    monkeypatch.setattr(collectives, "ROUND_CALLS", 1 << 10)
    monkeypatch.setattr(collectives, "SHORTEST_READ", 1 << 8)
    alive: list[int] = []
    batches: list[weakref.ref[collectives.Collectives]] = []

    class Counted(collectives.CollectiveAccumulator):
        def add(self, batch: collectives.Collectives) -> None:
            assert len(batch.trusted.calls)
            alive.append(sum(one() is not None for one in batches))
            batches.append(weakref.ref(batch))

    recording = read_profiled_run(generate(4, 3000)).recording
    gc.disable()
    try:
        collectives.match_collectives(recording.events, [Counted()])
    finally:
        gc.enable()
    assert len(alive) > 10
    assert max(alive) <= 2


def test_percentiles_of_a_large_run_come_from_fine_classes(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    run = generate(8, 1000)
    exact = explained_breakdown(run, explained=False)
    monkeypatch.setattr(breakdown, "EXACT_CALLS", 1)
    counted = explained_breakdown(run, explained=False)
    check = [(row.calls, row.bytes, row.seconds) for row in exact.rows]
    assert [(row.calls, row.bytes, row.seconds) for row in counted.rows] == check
    for before, after in zip(exact.rows, counted.rows, strict=True):
        assert after.p50_seconds == pytest.approx(before.p50_seconds, rel=2**-11)
        assert after.p99_seconds == pytest.approx(before.p99_seconds, rel=2**-11)
    assert counted.rank_rows == exact.rank_rows, "the percentiles of a rank stay exact"


def test_overflowed_rings_match_what_they_still_have(generate: Generate) -> None:
    run = generate(16, 2000, capacity=1000)
    result = explained_breakdown(run, "pow2", explained=True)
    check_rows([row.model_dump() for row in result.rows], run)
    assert result.overwritten == 16 * (2000 + 41 - 1000)
    assert result.waiting is not None
    # The last 1000 records are 980 calls: 735 between all ranks, and 245 in each of two nodes.
    assert (result.waiting.matched, result.waiting.unmatched_calls) == (735 + 2 * 245, 0)


def test_the_calls_of_a_rank_that_is_far_ahead_still_match(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 3 made many other calls in between, so each of its blocks has fewer collectives."""
    run = generate(8, 1000)
    path = profile(run, 3)
    content = path.read_bytes()
    records = np.frombuffer(content, RECORD, offset=RECORDS_START)
    alone = np.repeat(records, 4)
    extra = np.arange(len(alone)) % 4 != 3
    alone["communicator"][extra & (alone["communicator"] < 2)] = 2
    alone = alone[~extra | (alone["communicator"] == 2)]
    alone["sequence"] = np.arange(1, len(alone) + 1)
    head = bytearray(content[:RECORDS_START])
    entry = np.frombuffer(head, COMMUNICATOR, count=3, offset=HEADER.itemsize)
    entry["identity"][2], entry["size"][2] = 77, 1
    entry["check"][2:] = synthetic.signed(entry[2:].copy())["check"]
    header = np.frombuffer(head, HEADER, count=1)
    header["capacity"] = header["reserved_records"] = len(alone)
    synthetic.signed_header(header)
    path.write_bytes(bytes(head) + synthetic.signed(alone).tobytes())
    monkeypatch.setattr(collectives, "ROUND_CALLS", 1)
    monkeypatch.setattr(collectives, "SHORTEST_READ", 16)
    found = explained_breakdown(run, explained=True).waiting
    assert found is not None
    assert found.matched == expected(run)["matched"]
    assert found.unmatched_calls == 3 * 1000


def profile(run: RunFolder, rank: int) -> Path:
    return run.hvprof / f"rank-{rank:05d}.hvp"


def change_header(path: Path, **fields: int) -> None:
    content = bytearray(path.read_bytes())
    header = np.frombuffer(content, HEADER, count=1)
    for name, value in fields.items():
        header[name] = value
    synthetic.signed_header(header)
    path.write_bytes(content)


def explained(hvscale: Run, run: RunFolder) -> Any:
    done = hvscale("breakdown", run.path, "--json", "--explain")
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["incomplete"] is None else 4)
    assert "Traceback" not in done.stderr
    return document


def test_a_missing_profile_leaves_the_others_usable(hvscale: Run, generate: Generate) -> None:
    run = generate(64, 300)
    profile(run, 5).unlink()
    document = explained(hvscale, run)
    absent, waiting = document["warnings"]
    assert absent.startswith("no profile of rank 5: ")
    assert "leave out 1 of 64 ranks" in waiting
    assert document["incomplete"] == absent
    assert document["ranks"] == [rank for rank in range(64) if rank != 5]
    assert (document["waiting"]["matched"], document["waiting"]["unmatched_calls"]) == (expected(run)["matched"], 0)
    assert 5 not in [row["rank"] for row in document["waiting"]["late_ranks"]]


def test_truncated_profiles_take_one_line(hvscale: Run, generate: Generate) -> None:
    run = generate(64, 300)
    for rank in range(20, 40):
        path = profile(run, rank)
        path.write_bytes(path.read_bytes()[: RECORDS_START + 100 * RECORD.itemsize + rank])
    document = explained(hvscale, run)
    (line,) = document["warnings"]
    assert line.startswith("20 profiles are truncated or damaged, and the rest of them is used: rank-00020.hvp, ")
    assert "and 12 more" in line
    assert "100 records are left of 307 calls" in line
    # 100 records are 2 step marks and 98 calls, of which every fourth is within a node.
    calls, of_node = 98, 24
    complete = {rank // 8 for rank in range(64)} - {rank // 8 for rank in range(20, 40)}
    matched = calls - of_node + 8 * of_node + len(complete) * (75 - of_node)
    assert document["waiting"]["matched"] == matched
    assert sum(row["calls"] for row in document["rows"]) == 44 * 300 + 20 * calls


def test_a_profile_of_another_job_is_named_and_ignored(hvscale: Run, generate: Generate) -> None:
    run = generate(64, 300)
    for rank in (11, 12):
        change_header(profile(run, rank), job=999)
    document = explained(hvscale, run)
    assert "the profiles of ranks 11-12 were recorded in another job, so they are ignored" in document["warnings"][0]
    assert "no profile of ranks 11-12: " in document["warnings"][1]
    assert len(document["ranks"]) == 62
    assert document["waiting"]["matched"] == expected(run)["matched"]


def test_a_profile_that_is_being_written_counts_what_is_there(hvscale: Run, generate: Generate) -> None:
    run = generate(64, 300)
    path = profile(run, 7)
    content = path.read_bytes()
    # The last records are reserved, and one of them is half written.
    path.write_bytes(content[: -8 * RECORD.itemsize] + content[-8 * RECORD.itemsize :][:24] + bytes(1 << 20))
    change_header(path, capacity=5000)
    document = explained(hvscale, run)
    assert [line for line in document["warnings"] if "rank-00007" not in line] == []
    assert document["waiting"]["unmatched_calls"] > 0
    assert document["waiting"]["matched"] >= expected(run)["matched"] - 8


def test_a_node_whose_clock_is_hours_off_is_named_and_left_out(hvscale: Run, generate: Generate) -> None:
    run = generate(64, 300)
    for rank in range(16, 24):
        header = np.fromfile(profile(run, rank), HEADER, count=1)
        change_header(profile(run, rank), clock_offset_ns=int(header["clock_offset_ns"][0]) - 2 * HOUR_NS)
    document = explained(hvscale, run)
    (left_out,) = document["warnings"]
    assert left_out.startswith("the clocks of ranks 16-23 differ from the others' by at least 7")
    known, found = expected(run), document["waiting"]
    assert found["matched"] == known["matched"] - 75, "but those of that node"
    assert found["clock_conflicts"] == 0
    assert not {row["rank"] for row in found["late_ranks"]} & set(range(16, 24))
    exposed = document["exposed_communication"]
    assert (len(exposed["ranks"]), exposed["step_count"]) == (64, 6)
    assert exposed["mean_share_at_most"] == pytest.approx(known["exposed_share"]), "each rank has its own clock"
    done = hvscale("report", run.path)
    assert done.returncode == 0, done.stderr
    page = (run.path / "report.html").read_text()
    assert "ranks 16-23" in page
    per_step = sum(row["ns"] for row in known["rows"]) / 1e9 / 64 / 6
    assert f"in collectives, per step and rank</span><b>{human_seconds(per_step)}</b>" in page


def test_runs_of_many_ranks_are_compared_by_step(hvscale: Run, generate: Generate) -> None:
    runs = [generate(64, 400, name) for name in ("before", "after")]
    comparison = compare(runs[0], runs[1])
    assert (comparison.per, comparison.steps_before) == ("step", 8)
    known = expected(runs[0])
    assert comparison.total.calls_before == known["calls"] / 8
    assert comparison.total.seconds_before == pytest.approx(sum(row["ns"] for row in known["rows"]) / 1e9 / 8)
    assert comparison.total.verdict == "no difference"
    done = hvscale("compare", *(run.path for run in runs), "--json")
    assert json.loads(done.stdout)["total"]["calls_after"] == known["calls"] / 8


def without_steps(run: RunFolder) -> ProfiledRun:
    profiled = read_profiled_run(run)
    return replace(profiled, recording=replace(profiled.recording, steps={}), edges_ns=None)


def test_runs_without_steps_are_compared_in_bounded_memory(generate: Generate, monkeypatch: pytest.MonkeyPatch) -> None:
    run = without_steps(generate(2, 250_000))
    monkeypatch.setattr(passes, "workers", lambda: 1)

    def compared() -> tuple[Comparison, int]:
        tracemalloc.start()
        found = compare_profiled_runs(run, run, parse_bins("pow2"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found, peak

    whole, peak_of_whole = compared()
    for module in (passes, compare_module):
        monkeypatch.setattr(module, "PIECE", 1 << 14)
    monkeypatch.setattr(passes, "SORTED_BLOCKS", 1)
    found, peak = compared()
    assert found == whole
    assert found.total.calls_before == 500_000
    messages_of_a_rank = 250_000 * RECORD.itemsize
    assert peak < messages_of_a_rank / 2 < peak_of_whole


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=40), max_size=2),
    st.integers(1, 7),
    st.integers(1, 3),
)
def test_messages_come_in_order_of_time(
    processes: list[list[tuple[int, int]]], block: int, blocks_at_once: int
) -> None:
    """A call is recorded when it ends, so a long one comes after those that began in it."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        profiles = []
        for number, calls in enumerate(processes):
            made = synthetic.records(len(calls), seed=number)
            made["start_ns"], made["duration_ns"] = np.array(sorted(calls, key=sum), np.uint64).T
            path = Path(folder, f"rank-00000-{number}.hvp")
            path.write_bytes(synthetic.head(len(made), 1 << 20, 0, made) + synthetic.signed(made).tobytes())
            profiles.append(ProfileFile(path))
        for module, name in ((profile_file, "CHUNK_RECORDS"), (hvprof, "CHUNK_RECORDS"), (passes, "BLOCK")):
            patch.setattr(module, name, block)
        patch.setattr(passes, "SORTED_BLOCKS", blocks_at_once)
        events = hvprof.RecordedEvents(profiles)
        every = concatenate([piece for part in events.parts for piece in part.scan(detail=False)], ())
        order = np.argsort(every.start_ns, kind="stable")
        ordered = concatenate(list(in_order_of_start(events.parts)), ())
        for column in ("start_ns", "duration_ns", "bytes"):
            assert getattr(ordered, column).tolist() == getattr(every, column)[order].tolist()


def test_a_part_of_the_messages_equals_that_of_all(generate: Generate) -> None:
    source = read_profiled_run(generate(8, 3000)).recording.events
    every = source.load()
    assert len(every) == len(source) == 8 * 3000
    order = np.argsort(every.start_ns, kind="stable")
    for count in (1, 500, 100_000):
        assert (latest(source, count).start_ns == every.start_ns[order][-count:]).all()
    begin, end = every.start_ns[order][[5000, 6000]].tolist()
    inside = (every.start_ns < end) & (every.start_ns + every.duration_ns > begin)
    assert sorted(between(source, begin, end).start_ns.tolist()) == sorted(every.start_ns[inside].tolist())
    assert set(between(source, begin, end, [2, 3]).rank.tolist()) == {2, 3}
