"""The reader, before files that are whole, cut, torn or full of something else."""

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.errors import RequestError
from hvscale.profiling import breakdown, trim
from hvscale.profiling.profile_file import COMMUNICATOR, HEADER, RECORD, RECORDS_START, ProfileFile
from tests.profiling import made
from tests.profiling.conftest import MakeRun

COUNT = 40
WHOLE = made.profile(COUNT)


def read(content: bytes) -> tuple[ProfileFile, list[tuple[Any, ...]]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank-00000.hvp")
        path.write_bytes(content)
        profile = ProfileFile(path)
        return profile, [record for chunk in profile.chunks() for record in chunk.tolist()]


ORIGINAL = read(WHOLE)[1]


def test_a_whole_file() -> None:
    profile, found = read(WHOLE)
    assert found == made.records(COUNT).tolist()
    assert (profile.warnings, profile.overwritten) == ([], 0)
    assert profile.header.host == "node1"


def test_the_layout_is_that_of_the_c_header(tmp_path: Path) -> None:
    fields = ", ".join(f"offsetof(struct hvprof_header, {name})" for name in HEADER.names or ())
    entry_fields = ", ".join(f"offsetof(struct hvprof_communicator, {name})" for name in COMMUNICATOR.names or ())
    record_fields = ", ".join(f"offsetof(struct hvprof_record, {name})" for name in RECORD.names or ())
    program = tmp_path / "layout.c"
    program.write_text(
        f"""#include <stdio.h>
        #include "format.h"
        int main(void) {{
            size_t offsets[] = {{{fields}, sizeof(struct hvprof_header), {entry_fields}, sizeof(struct hvprof_communicator),
                {record_fields}, sizeof(struct hvprof_record), sizeof(struct hvprof_file)}};
            for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) printf("%zu ", offsets[i]);
        }}"""
    )
    sources = Path(__file__).parents[2] / "hvscale" / "profiling" / "hvprof"
    subprocess.run(["cc", "-std=c11", "-I", str(sources), "-o", str(tmp_path / "layout"), str(program)], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    ours = [*(HEADER.fields[name][1] for name in HEADER.names), HEADER.itemsize]  # type: ignore[index,union-attr]
    ours += [*(COMMUNICATOR.fields[name][1] for name in COMMUNICATOR.names), COMMUNICATOR.itemsize]  # type: ignore[index,union-attr]
    ours += [*(RECORD.fields[name][1] for name in RECORD.names), RECORD.itemsize]  # type: ignore[index,union-attr]
    ours.append(RECORDS_START)
    assert [int(word) for word in printed.split()] == ours


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(WHOLE) * 8 - 1))
def test_one_flipped_bit_changes_no_record(bit: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        profile, found = read(bytes(damaged))
    except RequestError:
        found = []
    if bit >= RECORDS_START * 8:
        lost = set(ORIGINAL) - set(found)
        assert set(found) <= set(ORIGINAL)
        assert len(lost) == 1
        # A sequence of 0 is what a killed process leaves in the one record it was writing.
        assert profile.warnings or int.from_bytes(damaged[bit // 512 * 64 :][:8], "little") == 0
    elif bit >= HEADER.itemsize * 8:
        assert set(found) <= set(ORIGINAL)
        assert found == ORIGINAL or profile.warnings, "a communicator was lost without a word"
    else:
        assert found in ([], ORIGINAL)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_anywhere(length: int) -> None:
    if length < RECORDS_START + RECORD.itemsize:
        with pytest.raises(RequestError, match=r"^[^\n]*rank-00000\.hvp[^\n]*$"):
            read(WHOLE[:length])
        return
    profile, found = read(WHOLE[:length])
    assert found == ORIGINAL[: len(found)]
    assert profile.warnings == [f"{profile.path} was cut short: {len(found)} of {COUNT} records are left"]


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=6000))
def test_any_bytes_are_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(RequestError, match=r"rank-00000\.hvp") as caught:
        read(content)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=1, max_size=3 * RECORD.itemsize), st.integers(0, COUNT * RECORD.itemsize))
def test_garbage_among_the_records(garbage: bytes, at: int) -> None:
    start = RECORDS_START + at
    try:
        _, found = read((WHOLE[:start] + garbage + WHOLE[start + len(garbage) :])[: len(WHOLE)])
    except RequestError:
        return
    assert set(found) <= set(ORIGINAL)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_forged_record_neither_crashes_nor_wraps(data: st.DataObject) -> None:
    """Its checksum is right, its content is anything."""
    forged = made.records(3)
    for name in RECORD.names or ():
        if name not in ("check", "sequence"):
            limits = np.iinfo(RECORD[name])
            forged[name][1] = data.draw(st.integers(int(limits.min), int(limits.max)), name)
    _, found = read(made.head(3, 3) + made.signed(forged).tobytes())
    assert len(found) in (2, 3)


def test_a_torn_last_record_of_each_thread_is_silent() -> None:
    records = made.records(5)
    records["buffer_and_thread"] = np.array([1, 2, 1, 2, 1]) << 48
    made.signed(records)
    records["sequence"][4] = 0
    profile, found = read(made.head(6, 8) + records.tobytes() + bytes(3 * RECORD.itemsize))
    assert (len(found), profile.warnings) == (4, [])
    profile, found = read(made.head(7, 7) + records.tobytes() + bytes(2 * RECORD.itemsize))
    assert len(found) == 4
    assert len(profile.warnings) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header["version"].fill(1), "version 1; this hvscale reads version 2"),
        (lambda header: header["record_bytes"].fill(32), "sizes"),
        (lambda header: header["capacity"].fill(0), "sizes"),
    ],
)
def test_a_header_of_another_kind(change: Callable[[np.ndarray], None], message: str) -> None:
    header = made.header(1, 1)
    change(header)
    with pytest.raises(RequestError, match=message):
        read(made.signed_header(header).tobytes() + made.communicators().tobytes() + made.records(1).tobytes())


def test_no_whole_record_at_all() -> None:
    with pytest.raises(RequestError, match="none of its 9 records is whole"):
        read(made.head(9, 9) + bytes(9 * RECORD.itemsize))


def test_one_damaged_file_does_not_take_the_others_with_it(make_run: MakeRun) -> None:
    run = make_run(2)
    (run.hvprof / "rank-00000.hvp").write_bytes(made.profile(COUNT, rank=0))
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


def test_trimming_loses_nothing_and_leaves_damaged_files_alone(make_run: MakeRun) -> None:
    run = make_run(2)
    long = made.head(COUNT, 1000) + made.records(COUNT).tobytes() + bytes((1000 - COUNT) * RECORD.itemsize)
    full = made.head(2000, 1000, rank=1) + bytes(1000 * RECORD.itemsize)
    contents = {
        "rank-00000.hvp": long,
        "rank-00001.hvp": full,
        "rank-00002.hvp": b"hvprof\r\n garbage",
        ".rank-00003.abc": b"",
    }
    for name, content in contents.items():
        (run.hvprof / name).write_bytes(content)
    trim(run)
    assert (run.hvprof / "rank-00000.hvp").read_bytes() == long[: RECORDS_START + COUNT * RECORD.itemsize]
    assert (run.hvprof / "rank-00001.hvp").read_bytes() == full
    assert (run.hvprof / "rank-00002.hvp").read_bytes() == contents["rank-00002.hvp"]
    assert not (run.hvprof / ".rank-00003.abc").exists()
