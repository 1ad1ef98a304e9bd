"""The reader, with intact, truncated and damaged files, and with other content."""

import errno
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.profiling import trim_profiles
from hvscale.profiling.analyze.breakdown import breakdown
from hvscale.profiling.analyze.explanation import explained_breakdown
from hvscale.profiling.read.counters import COUNTER, counter_checks, intact_counters
from hvscale.profiling.read.profile_file import COMMUNICATOR, COUNTERS_START, HEADER, RECORD, RECORDS_START, ProfileFile
from hvscale.profiling.read.ring_file import check_words
from tests.native import NATIVE
from tests.profiling import synthetic
from tests.profiling.conftest import MakeRun

COUNT = 40
WHOLE = synthetic.profile(COUNT)


def read(content: bytes) -> tuple[ProfileFile, list[tuple[Any, ...]]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank-00000.hvp")
        path.write_bytes(content)
        profile = ProfileFile(path)
        return profile, [record for chunk in profile.chunks() for record in chunk.tolist()]


def totals_of(counters: np.ndarray) -> list[list[int]]:
    """The words, without the check, of each counter in use, by key."""
    used = counters[(counters["key"] != 0) & (counters["calls"] != 0)]
    return sorted(np.ascontiguousarray(used).view("<u8").reshape(len(used), COUNTER.itemsize // 8)[:, :-1].tolist())


ORIGINAL = read(WHOLE)[1]
ORIGINAL_TOTALS = totals_of(synthetic.counters(synthetic.records(COUNT)))
# Possible results for a file whose process was killed while it counted its last call.
WITHOUT_ONE_CALL = [totals_of(synthetic.counters(np.delete(synthetic.records(COUNT), index))) for index in range(COUNT)]


def test_a_complete_file() -> None:
    profile, found = read(WHOLE)
    assert found == synthetic.records(COUNT).tolist()
    assert (profile.warnings, profile.overwritten) == ([], 0)
    assert profile.header.host == "node1"


def test_the_layout_equals_that_in_c(tmp_path: Path) -> None:
    fields = ", ".join(f"offsetof(struct hvprof_header, {name})" for name in HEADER.names or ())
    entry_fields = ", ".join(f"offsetof(struct hvprof_communicator, {name})" for name in COMMUNICATOR.names or ())
    counter_fields = ", ".join(f"offsetof(struct hvprof_counter, {name})" for name in COUNTER.names or ())
    record_fields = ", ".join(f"offsetof(struct hvprof_record, {name})" for name in RECORD.names or ())
    program = tmp_path / "layout.c"
    program.write_text(
        f"""#include <stdio.h>
        #include "format.h"
        int main(void) {{
            size_t offsets[] = {{{fields}, sizeof(struct hvprof_header), {entry_fields}, sizeof(struct hvprof_communicator),
                {counter_fields}, sizeof(struct hvprof_counter), {record_fields}, sizeof(struct hvprof_record), sizeof(struct hvprof_file)}};
            for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) printf("%zu ", offsets[i]);
        }}"""
    )
    subprocess.run(
        ["cc", "-std=c11", "-I", str(NATIVE / "hvprof"), "-o", str(tmp_path / "layout"), str(program)], check=True
    )
    printed = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    python_layout = [*(HEADER.fields[name][1] for name in HEADER.names), HEADER.itemsize]  # type: ignore[index,union-attr]
    python_layout += [*(COMMUNICATOR.fields[name][1] for name in COMMUNICATOR.names), COMMUNICATOR.itemsize]  # type: ignore[index,union-attr]
    python_layout += [*(COUNTER.fields[name][1] for name in COUNTER.names), COUNTER.itemsize]  # type: ignore[index,union-attr]
    python_layout += [*(RECORD.fields[name][1] for name in RECORD.names), RECORD.itemsize]  # type: ignore[index,union-attr]
    python_layout.append(RECORDS_START)
    assert [int(word) for word in printed.split()] == python_layout


@settings(max_examples=200)
@given(st.integers(0, len(WHOLE) * 8 - 1))
def test_one_flipped_bit_changes_no_record(bit: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        profile, found = read(bytes(damaged))
    except RequestError:
        found = []
    if bit >= RECORDS_START * 8:
        assert set(found) <= set(ORIGINAL)
        assert len(set(ORIGINAL) - set(found)) == 1
        assert profile.warnings
    elif bit >= COUNTERS_START * 8:
        assert found == ORIGINAL
        assert profile.warnings or totals_of(profile.counters) in (ORIGINAL_TOTALS, *WITHOUT_ONE_CALL)
    elif bit >= HEADER.itemsize * 8:
        assert set(found) <= set(ORIGINAL)
        assert found == ORIGINAL or profile.warnings, "a communicator was lost without a warning"
    else:
        assert found in ([], ORIGINAL)


@settings(max_examples=100)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_truncated_anywhere(length: int) -> None:
    if length < RECORDS_START + RECORD.itemsize:
        with pytest.raises(RequestError, match=r"^[^\n]*rank-00000\.hvp[^\n]*$"):
            read(WHOLE[:length])
        return
    profile, found = read(WHOLE[:length])
    assert found == ORIGINAL[: len(found)]
    assert profile.warnings == [f"{profile.path} is truncated: {len(found)} records are left of {COUNT} calls"]


@settings(max_examples=100)
@given(st.binary(max_size=6000))
def test_arbitrary_bytes_are_rejected_in_one_line(content: bytes) -> None:
    with pytest.raises(RequestError, match=r"rank-00000\.hvp") as caught:
        read(content)
    assert "\n" not in str(caught.value)


@settings(max_examples=100)
@given(st.binary(min_size=1, max_size=3 * RECORD.itemsize), st.integers(0, COUNT * RECORD.itemsize))
def test_garbage_among_the_records(garbage: bytes, at: int) -> None:
    start = RECORDS_START + at
    try:
        _, found = read((WHOLE[:start] + garbage + WHOLE[start + len(garbage) :])[: len(WHOLE)])
    except RequestError:
        return
    assert set(found) <= set(ORIGINAL)


@settings(max_examples=100)
@given(st.data())
def test_a_forged_record_causes_no_crash_or_overflow(data: st.DataObject) -> None:
    """Its checksum is correct, its content is arbitrary."""
    forged = synthetic.records(3)
    for name in RECORD.names or ():
        if name not in ("check", "sequence"):
            limits = np.iinfo(RECORD[name])
            forged[name][1] = data.draw(st.integers(int(limits.min), int(limits.max)), name)
    _, found = read(synthetic.head(3, 3) + synthetic.signed(forged).tobytes())
    assert len(found) in (2, 3)


@pytest.mark.parametrize("name", ["start_ns", "duration_ns"])
def test_times_whose_sum_fits_into_no_integer_are_damage(name: str, make_run: MakeRun) -> None:
    run, forged = make_run(1), synthetic.records(3)
    forged[name][1] = 2**63 - 1
    content = synthetic.head(3, 3, 0, synthetic.records(3)) + synthetic.signed(forged).tobytes()
    (run.hvprof / "rank-00000.hvp").write_bytes(content)
    (warning,) = breakdown(run).warnings
    assert "2 intact records" in warning


def test_a_torn_last_record_of_each_thread_gives_no_warning() -> None:
    records = synthetic.records(5)
    records["buffer_and_thread"] = np.array([1, 2, 1, 2, 1]) << 48
    synthetic.signed(records)
    counted = records[:4].copy()
    records["sequence"][4] = 0
    profile, found = read(synthetic.head(16, 16, 0, counted) + records.tobytes() + bytes(11 * RECORD.itemsize))
    assert (len(found), profile.warnings) == (4, [])
    # Two intact records that are not yet counted: one per thread.
    profile, found = read(synthetic.head(16, 16, 0, counted[:2]) + records.tobytes() + bytes(11 * RECORD.itemsize))
    assert (len(found), profile.warnings) == (4, [])
    profile, found = read(synthetic.head(16, 16, 0, counted[:1]) + records.tobytes() + bytes(11 * RECORD.itemsize))
    assert (len(found), len(profile.warnings)) == (4, 1)
    more = np.concatenate([counted, counted[:1]])
    profile, found = read(synthetic.head(16, 16, 0, more) + records.tobytes() + bytes(11 * RECORD.itemsize))
    assert (len(found), len(profile.warnings)) == (4, 1)


def test_a_record_torn_by_a_suspended_thread_counts_as_overwritten() -> None:
    """Numbers 1 to 40 in a ring of 16: the last writers put 33 to 40 into the first eight slots."""
    records = synthetic.records(40)
    ring = np.concatenate([records[32:], records[24:32]])
    torn = records[18].copy()  # number 19 belongs to slot 2, which has number 35
    torn["duration_ns"] = records[34]["duration_ns"]

    def read_with(slot: int, record: np.void) -> tuple[int, int, list[str]]:
        changed = ring.copy()
        changed[slot] = record
        profile, found = read(synthetic.head(48, 16, 0, records) + changed.tobytes())
        return len(found), profile.overwritten, profile.warnings

    assert read_with(2, records[34]) == (16, 24, [])
    assert read_with(2, torn) == (15, 25, [])
    # No number is a full ring ahead of 34 yet, and number 19 does not belong to slot 3: damage.
    newest = records[33].copy()
    newest["duration_ns"] += 1
    assert read_with(1, newest)[2] != []
    assert read_with(3, torn)[2] != []


def test_a_kill_at_the_first_overwriting_record_gives_no_warning() -> None:
    records = synthetic.records(16)
    torn = records.copy()
    torn["sequence"][0] = 0
    profile, found = read(synthetic.head(32, 16, 0, records) + torn.tobytes())
    assert (len(found), profile.overwritten, profile.warnings) == (15, 1, [])
    profile, _ = read(synthetic.head(16, 16, 0, records) + torn.tobytes())
    assert len(profile.warnings) == 1


@settings(max_examples=200)
@given(st.integers(0, 20), st.integers(0, 4), st.integers(0, 1 << 40), st.integers(0, 1 << 42), st.booleans())
def test_a_partly_counted_call_is_repaired(calls: int, done: int, size: int, duration: int, bitwise: bool) -> None:
    """counters.c updates the latency class, the calls, the bytes, the check and the duration, in
    this order.
    """
    records = synthetic.records(calls + 1)
    records["operation"], records["communicator"], records["flags"] = 13, 1, bitwise
    records["bytes"], records["duration_ns"] = size, duration
    before, after = (synthetic.counters(records[:number])[:1] for number in (calls, calls + 1))
    if not calls:
        before["key"] = after["key"]
        before["check"] = counter_checks(before)
    torn = before.copy()
    for name in ("latencies", "calls", "bytes", "check", "duration_ns")[:done]:
        torn[name] = after[name]
    found, damaged = intact_counters(torn)
    assert len(damaged) == 0
    assert found.tobytes() in (before.tobytes(), after.tobytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header["version"].fill(2), "version 2; this hvscale reads version 4: read it with"),
        (lambda header: header["version"].fill(9), "version 9; this hvscale reads version 4: update hvscale"),
        (lambda header: header["record_bytes"].fill(32), "sizes"),
        (lambda header: header["capacity"].fill(0), "sizes"),
        (lambda header: header["rank"].fill(2**31 - 1), "a rank or a time"),
        (lambda header: header["realtime_ns"].fill(2**64 - 1), "a rank or a time"),
        (lambda header: header["clock_offset_ns"].fill(2**63 - 1), "a time that no clock can have"),
        (lambda header: header["clock_error_ns"].fill(2**63), "a time that no clock can have"),
    ],
)
def test_an_invalid_header(change: Callable[[np.ndarray], None], message: str) -> None:
    header = synthetic.header(1, 1)
    change(header)
    with pytest.raises(RequestError, match=message):
        read(
            synthetic.signed_header(header).tobytes()
            + synthetic.communicators().tobytes()
            + synthetic.records(1).tobytes()
        )


def test_no_intact_record() -> None:
    with pytest.raises(RequestError, match="none of its 9 records is intact"):
        read(synthetic.head(16, 16, 0, synthetic.records(9)) + bytes(9 * RECORD.itemsize))


def test_one_damaged_file_does_not_affect_the_others(make_run: MakeRun) -> None:
    run = make_run(2)
    (run.hvprof / "rank-00000.hvp").write_bytes(synthetic.profile(COUNT, rank=0))
    (run.hvprof / "rank-00001.hvp").write_bytes(b"garbage")
    result = breakdown(run)
    assert sum(row.calls for row in result.rows) == COUNT
    assert result.ranks == [0]
    assert len(result.warnings) == 2
    assert "rank-00001.hvp is not a profile" in result.warnings[0]
    assert "no profile of rank 1" in result.warnings[1]
    assert (run.hvprof / "rank-00001.hvp").read_bytes() == b"garbage"

    (run.hvprof / "rank-00000.hvp").write_bytes(b"")
    with pytest.raises(RequestError, match=r"rank-00000\.hvp is not a profile"):
        breakdown(run)


def flipped(at: int) -> bytes:
    content = bytearray(WHOLE)
    content[at] ^= 1
    return bytes(content)


def test_damage_that_loses_messages_makes_a_profile_incomplete(make_run: MakeRun) -> None:
    run = make_run(1)
    path = run.hvprof / "rank-00000.hvp"
    path.write_bytes(flipped(RECORDS_START + 5 * RECORD.itemsize + 20))
    found = breakdown(run)
    assert sum(row.calls for row in found.rows) == COUNT - 1
    assert found.incomplete == f"{path} is damaged: {COUNT - 1} intact records are used, the others ignored"
    path.write_bytes(flipped(COUNTERS_START + 20))  # the records are all there
    found = breakdown(run)
    assert sum(row.calls for row in found.rows) == COUNT
    assert (found.incomplete, len(found.warnings)) == (None, 1)


@pytest.mark.parametrize(("operation", "is_lost"), [(23, True), (56, True), (62, True), (13, False), (63, False)])
def test_a_damaged_counter_of_calls_without_records_loses_messages(
    operation: int, is_lost: bool, make_run: MakeRun
) -> None:
    """Also where the ring has a record of every collective."""
    run, made = make_run(1), synthetic.records(COUNT)
    counters = synthetic.counters(made)
    damaged = counters[np.count_nonzero(counters["key"]) :][:1]
    damaged["key"], damaged["calls"] = operation | 1 << 15, 5
    parts = (synthetic.header(COUNT, COUNT), synthetic.communicators(), counters, made)
    path = run.hvprof / "rank-00000.hvp"
    path.write_bytes(b"".join(part.tobytes() for part in parts))
    found = breakdown(run)
    assert found.incomplete == (f"{path} is damaged: 1 of its counters are ignored" if is_lost else None)
    assert len(found.warnings) == 1


def test_after_an_overflow_a_damaged_counter_is_named_and_no_line_claims_every_call(make_run: MakeRun) -> None:
    run, made = make_run(1), synthetic.records(100)
    content = bytearray(synthetic.head(100, 40, 0, made) + np.concatenate([made[80:], made[60:80]]).tobytes())
    content[COUNTERS_START + 20] ^= 1
    path = run.hvprof / "rank-00000.hvp"
    path.write_bytes(content)
    found = breakdown(run)
    assert sum(row.calls for row in found.rows) < len(made)
    assert found.incomplete == f"{path} is damaged: 1 of its counters are ignored"
    assert found.warnings[0] == found.incomplete
    assert "every call" not in found.warnings[1]


def test_a_damaged_counter_of_a_rank_beside_an_overflowed_one_loses_messages(make_run: MakeRun) -> None:
    """The counters of all ranks are used as soon as the ring of one overflowed."""
    run, made = make_run(2), synthetic.records(100)
    ring = np.concatenate([made[80:], made[60:80]])
    (run.hvprof / "rank-00000.hvp").write_bytes(synthetic.head(100, 40, 0, made) + ring.tobytes())
    content = bytearray(synthetic.profile(COUNT, rank=1))
    content[COUNTERS_START + 20] ^= 1
    path = run.hvprof / "rank-00001.hvp"
    path.write_bytes(content)
    found = breakdown(run)
    assert sum(row.calls for row in found.rows) < len(made) + COUNT
    assert found.incomplete == f"{path} is damaged: 1 of its counters are ignored"


def test_a_counter_that_was_changing_is_read_again(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(1).hvprof / "rank-00000.hvp"
    path.write_bytes(flipped(COUNTERS_START + 20))
    monkeypatch.setattr(os, "pread", lambda _, size, at: WHOLE[at : at + size])
    profile = ProfileFile(path)
    assert profile.damaged_counters == 0
    assert totals_of(profile.counters) == ORIGINAL_TOTALS


def test_a_rank_whose_ring_overflowed_has_all_its_steps(make_run: MakeRun) -> None:
    run, made, header = make_run(1), synthetic.records(100), synthetic.header(100, 40)
    sums = np.array([[7, 14 * 10**9, 0, 0, 0]], np.uint64)
    header["step_sums"] = np.append(sums, check_words(sums))
    kept = np.concatenate([made[80:], made[60:80]])  # the ring
    parts = (header, synthetic.communicators(), synthetic.counters(made), kept)
    Path(run.hvprof, "rank-00000.hvp").write_bytes(b"".join(part.tobytes() for part in parts))
    found = explained_breakdown(run)
    assert found.overwritten == 60
    assert (found.by_rank[0].steps, found.by_rank[0].step_seconds) == (7, 2)
    # No step mark is left in the ring, but the counters have the steps.
    exposed = found.exposed_communication
    assert exposed is not None
    assert (exposed.basis, exposed.step_count, exposed.mean_step_seconds) == ("counters", 7, 2)


def test_a_counter_without_a_call_has_no_row(make_run: MakeRun) -> None:
    """A killed process may have begun the counter of its first barrier."""
    run, made = make_run(1), synthetic.records(100)
    made["operation"] = 13
    counters = synthetic.counters(made)
    begun = counters[np.count_nonzero(counters["key"]) :][:1]
    begun["key"] = 1 | 1 << 15
    begun["check"] = counter_checks(begun)
    parts = (synthetic.header(0, 0), synthetic.communicators(), counters)
    Path(run.hvprof, "rank-00000.hvp").write_bytes(b"".join(part.tobytes() for part in parts))
    found = breakdown(run)
    assert ({row.operation for row in found.rows}, found.incomplete) == ({"allreduce"}, None)
    assert sum(row.calls for row in found.rows) == len(made)


@pytest.mark.parametrize(("lock", "runs"), [(fcntl.LOCK_SH, True), (fcntl.LOCK_EX, False)])
def test_a_process_that_runs_shares_its_lock_and_another_reader_does_not(lock: int, runs: bool, tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.hvp"
    path.write_bytes(WHOLE)
    with path.open("rb") as other:
        fcntl.flock(other, lock)
        profile = ProfileFile(path)
        assert sum(map(len, profile.chunks())) == COUNT
    assert profile.being_written == runs


def test_without_locks_a_profile_that_grew_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "as on NFS")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "rank-00000.hvp"
    path.write_bytes(WHOLE)
    profile = ProfileFile(path)
    path.write_bytes(synthetic.profile(COUNT + 16))
    assert sum(map(len, profile.chunks())) == COUNT
    assert profile.being_written


def test_trimming_keeps_all_records_and_damaged_files(make_run: MakeRun) -> None:
    run = make_run(2)
    long = synthetic.head(COUNT, 1000) + synthetic.records(COUNT).tobytes() + bytes((1000 - COUNT) * RECORD.itemsize)
    full = synthetic.head(2000, 1000, rank=1) + bytes(1000 * RECORD.itemsize)
    contents = {
        "rank-00000.hvp": long,
        "rank-00001.hvp": full,
        "rank-00002.hvp": b"hvprof\r\n garbage",
        ".rank-00003.abc": b"",
    }
    for name, content in contents.items():
        (run.hvprof / name).write_bytes(content)
    trim_profiles(run)
    assert (run.hvprof / "rank-00000.hvp").read_bytes() == long[: RECORDS_START + COUNT * RECORD.itemsize]
    assert (run.hvprof / "rank-00001.hvp").read_bytes() == full
    assert (run.hvprof / "rank-00002.hvp").read_bytes() == contents["rank-00002.hvp"]
    assert not (run.hvprof / ".rank-00003.abc").exists()
