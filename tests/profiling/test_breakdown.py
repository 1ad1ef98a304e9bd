"""Bins, sums, percentiles and bandwidths, compared with plain arithmetic."""

import csv
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.units import GIB, KIB, MIB, human_bytes, human_range, human_seconds
from hvscale.profiling import Breakdown, Events, Recording, tabulate
from hvscale.profiling.analyze.breakdown import breakdown, unused_horovod_settings
from hvscale.profiling.analyze.explanation import explained_breakdown
from hvscale.profiling.analyze.grouping import Bins, busbw_factors, parse_bins
from hvscale.profiling.compare import read_profiled_run
from hvscale.studies.run_report.breakdown_tables import table, write_breakdown_csv
from tests.profiling import synthetic
from tests.profiling.conftest import MakeRun

OPERATIONS = ("barrier", "allreduce", "allgather", "broadcast", "reduce-scatter-block")
BITWISE_BYTES = 77  # calls of this size count as bitwise reductions
Call = tuple[int, int, int, int, int]  # rank, operation, bytes, nanoseconds, ranks of the communicator


def events(calls: list[Call]) -> Events:
    columns = np.array(calls, np.int64).reshape(-1, 5)
    return Events(
        operations=OPERATIONS,
        rank=columns[:, 0].astype(np.int32),
        operation=columns[:, 1].astype(np.uint8),
        bytes=columns[:, 2],
        start_ns=np.zeros(len(columns), np.int64),
        duration_ns=columns[:, 3],
        communicator_size=columns[:, 4].astype(np.int32),
        bitwise=columns[:, 2] == BITWISE_BYTES,
        thread=np.zeros(len(columns), np.int64),
    )


def result_of(calls: list[Call], bins: str = "study", ranks_per_event: int = 1) -> Breakdown:
    recording = Recording("hvprof", events(calls), 2, sorted({call[0] for call in calls}), ranks_per_event)
    return tabulate(recording, parse_bins(bins), "run")


def test_bitwise_reductions_are_counted_separately() -> None:
    found = result_of([(0, 1, BITWISE_BYTES, 1000, 2), (1, 1, BITWISE_BYTES, 2000, 2), (0, 1, 100, 5000, 2)])
    (row,) = found.rows
    assert (row.calls, row.bitwise_calls) == (3, 2)
    assert row.bitwise_seconds == pytest.approx(3e-6)
    assert [row.bitwise_calls for row in found.rank_rows] == [1, 1]


@pytest.mark.parametrize(
    ("env", "operation_bytes", "source", "is_warned_of"),
    [
        (["HOROVOD_CYCLE_TIME=5"], 100, "hvprof", True),
        (["HOROVOD_CYCLE_TIME=5"], BITWISE_BYTES, "hvprof", False),
        (["HOROVOD_CYCLE_TIME=5"], 100, "horovod-timeline", False),
        (["HOROVOD_CYCLE_TIME=5"], 100, "nccl", False),
        (["HOROVOD_CYCLE_TIME=5", "HOROVOD_CACHE_CAPACITY=9"], 100, "hvprof", True),
        # Without its cache, Horovod makes no bitwise reductions.
        (["HOROVOD_CYCLE_TIME=5", "HOROVOD_CACHE_CAPACITY=0"], 100, "hvprof", False),
        (["UCX_TLS=tcp"], 100, "hvprof", False),
    ],
)
def test_settings_of_horovod_in_a_job_without_it_are_a_warning(
    env: list[str], operation_bytes: int, source: str, is_warned_of: bool, make_run: MakeRun
) -> None:
    record = make_run(2).read()
    record.launch["env"], record.state = [*env], "finished"
    record.environment_passed = [one.partition("=")[0] for one in env]
    table = result_of([(0, 1, operation_bytes, 1000, 2)]).model_copy(update={"source": source})
    names = ", ".join(sorted(record.environment_passed))
    expected = [f"{names}: no effect, because the profile shows no Horovod"] if is_warned_of else []
    assert unused_horovod_settings(record, table) == expected
    lost = table.model_copy(update={"incomplete": "no profile of rank 1"})
    assert unused_horovod_settings(record, lost) == []
    record.state = "failed"
    assert unused_horovod_settings(record, table) == []


def test_the_study_bins_include_their_upper_edges() -> None:
    edges = [
        0,
        1,
        128 * KIB,
        128 * KIB + 1,
        16 * MIB,
        16 * MIB + 1,
        32 * MIB,
        32 * MIB + 1,
        64 * MIB,
        64 * MIB + 1,
        9 * GIB,
    ]
    result = result_of([(0, 1, size, 1000, 2) for size in edges])
    limits = [(row.bytes_min, row.bytes_max, row.calls) for row in result.rows]
    assert limits == [
        (0, 0, 1),
        (1, 131072, 2),
        (131073, 16 * MIB, 2),
        (16 * MIB + 1, 32 * MIB, 2),
        (32 * MIB + 1, 64 * MIB, 2),
        (64 * MIB + 1, None, 2),
    ]


@given(st.integers(0, 2**62), st.sampled_from(["study", "pow2", "1K,64K,4M", "7"]))
def test_every_size_is_within_the_limits_of_its_bin(size: int, text: str) -> None:
    bins = parse_bins(text)
    low, high = bins.limits(int(bins.index(np.array([size]))[0]))
    assert low <= size
    assert high is None or size <= high


@pytest.mark.parametrize("text", ["study", "pow2", "1K,64K,4M"])
def test_bins_have_no_gap_or_overlap(text: str) -> None:
    bins = parse_bins(text)
    limits = [bins.limits(index) for index in range(len(bins))]
    assert limits[0] == (0, 0)
    assert limits[-1][1] is None
    for (_, high), (low, _) in pairwise(limits):
        assert high is not None
        assert low == high + 1


def test_edges_use_powers_of_1024() -> None:
    assert parse_bins("512, 1K,64KiB,4m,1GB") == Bins((512, KIB, 64 * KIB, 4 * MIB, GIB))


@pytest.mark.parametrize(
    "text", ["", "study,1K", "1K,1K", "4M,1K", "0", "-1", "1.5K", "1T", "1K,,2K", "9" * 18 + "G", "k"]
)
def test_invalid_bins_give_a_one_line_error(text: str) -> None:
    with pytest.raises(RequestError, match="--bins") as caught:
        parse_bins(text)
    assert "\n" not in str(caught.value)


CALLS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, len(OPERATIONS) - 1),
        st.one_of(st.integers(0, 200 * MIB), st.sampled_from([0, 1, 128 * KIB, 16 * MIB])),
        st.integers(0, 10**11),
        st.integers(1, 512),
    ),
    min_size=1,
    max_size=60,
)


@given(CALLS, st.sampled_from(["study", "pow2", "1K,64K,4M"]))
def test_rows_equal_plain_arithmetic(calls: list[Call], text: str) -> None:
    result = result_of(calls, text)
    all_ranks = [(None, row) for row in result.rows]
    for rank, row in [*all_ranks, *((row.rank, row) for row in result.rank_rows)]:
        mine = [
            call
            for call in calls
            if OPERATIONS[call[1]] == row.operation
            and row.bytes_min <= call[2] <= (row.bytes_max if row.bytes_max is not None else 2**63)
            and rank in (None, call[0])
        ]
        seconds = [call[3] / 1e9 for call in mine]
        assert row.calls == len(mine)
        assert row.bytes == sum(call[2] for call in mine)
        assert row.seconds == pytest.approx(sum(seconds))
        assert row.mean_seconds == pytest.approx(np.mean(seconds))
        assert row.p50_seconds == pytest.approx(np.percentile(seconds, 50))
        assert row.p99_seconds == pytest.approx(np.percentile(seconds, 99))
        if row.bytes and row.seconds:
            assert row.algbw_gigabytes_per_second == pytest.approx(row.bytes / row.seconds / 1e9)
            bus_bytes = sum(call[2] * factor(OPERATIONS[call[1]], call[4]) for call in mine)
            assert row.busbw_gigabytes_per_second == pytest.approx(bus_bytes / row.seconds / 1e9)
        else:
            assert row.algbw_gigabytes_per_second is row.busbw_gigabytes_per_second is None
    assert sum(row.calls for row in result.rows) == len(calls) == sum(row.calls for row in result.rank_rows)
    if sum(call[3] for call in calls):
        assert sum(row.share for row in result.rows) == pytest.approx(1)


def factor(operation: str, n: int) -> float:
    return {"allreduce": 2 * (n - 1) / n, "broadcast": 1.0, "barrier": 1.0}.get(operation, (n - 1) / n)


def test_busbw_of_each_operation_on_four_ranks() -> None:
    four = np.array([4], np.int32)
    assert {
        name: busbw_factors(name, four)[0]
        for name in ("allreduce", "allgather", "reduce-scatter", "gather", "alltoallw")
    } == {
        "allreduce": 1.5,
        "allgather": 0.75,
        "reduce-scatter": 0.75,
        "gather": 0.75,
        "alltoallw": 0.75,
    }
    assert {busbw_factors(name, four)[0] for name in ("broadcast", "reduce", "scan", "exscan", "barrier")} == {1.0}


def test_a_sum_of_sizes_beyond_64_bits() -> None:
    result = result_of([(0, 1, 2**62, 1000, 2)] * 5)
    assert result.rows[0].bytes == 5 * 2**62


def test_a_source_with_one_rank_counts_for_all() -> None:
    result = result_of([(0, 1, 4096, 2000, 2)] * 3, ranks_per_event=2)
    all_ranks, rank = result.rows[0], result.rank_rows[0]
    assert (all_ranks.calls, all_ranks.bytes, rank.calls) == (6, 6 * 4096, 3)
    assert (all_ranks.seconds, rank.p50_seconds) == pytest.approx((12e-6, 2e-6))
    assert result.rows[0].algbw_gigabytes_per_second == result.rank_rows[0].algbw_gigabytes_per_second


def test_a_job_without_a_collective_warns(make_run: MakeRun) -> None:
    result = breakdown(make_run(2))
    assert (result.rows, result.rank_rows, result.ranks, result.source) == ([], [], [], "hvprof")
    assert len(result.warnings) == 1
    assert "no collective was recorded" in result.warnings[0]
    assert "total" in rendered(result)


def test_a_run_without_a_profile_is_an_error_and_one_without_a_collective_a_warning(make_run: MakeRun) -> None:
    run = make_run(2)
    no_profile = f"{re.escape(str(run.path))} has no profile: record one with `hvscale profile`$"
    with pytest.raises(RequestError, match=no_profile):
        explained_breakdown(run)
    with pytest.raises(RequestError, match=no_profile):
        read_profiled_run(run)
    record = run.read()
    record.rank_environment["HVPROF_DIRECTORY"] = str(run.hvprof)
    run.write(record)
    assert "the job made none" in explained_breakdown(run).warnings[0]
    with pytest.raises(RequestError, match="the job made none"):
        read_profiled_run(run)


def test_a_warning_in_a_log_is_not_why_a_profile_is_missing(make_run: MakeRun) -> None:
    run = make_run(2)
    (run.hvprof / "rank-00000.hvp").write_bytes(synthetic.profile(50))
    warning = "hvprof: HVPROF_MIB=64M is not a number of MiB from 1 to 1048576: using the default, 64\n"
    why = "cannot create a profile of 64.0 MiB in /full (No space left on device)"
    run.log(1).write_text(f"{warning}hvprof: {why}: the job continues without a profile\n")
    assert breakdown(run).incomplete == f"no profile of rank 1: {why}"
    run.log(1).write_text(warning)
    assert breakdown(run).incomplete == "no profile of rank 1: it made no MPI call, or its file is lost"


def test_the_document(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(3)
    for rank in range(2):
        (run.hvprof / f"rank-{rank:05d}.hvp").write_bytes(synthetic.profile(50, rank, seed=rank))
    result = breakdown(run)
    document = json.loads(result.model_dump_json(by_alias=True))
    assert document["schema"] == "hvscale/breakdown/1"
    assert (document["source"], document["np"], document["ranks"], document["overwritten"]) == ("hvprof", 3, [0, 1], 0)
    assert document["warnings"] == ["no profile of rank 2: it made no MPI call, or its file is lost"]
    assert set(document["rows"][0]) == {
        *("operation", "bytes_min", "bytes_max", "calls", "bytes", "seconds", "share"),
        *("mean_seconds", "p50_seconds", "p99_seconds"),
        *("algbw_gigabytes_per_second", "busbw_gigabytes_per_second"),
        *("bitwise_calls", "bitwise_seconds"),
    }
    assert set(document["rank_rows"][0]) == {"rank", *document["rows"][0]}
    assert sum(row["calls"] for row in document["rows"]) == 100
    assert Breakdown.model_validate(document) == result

    explained = explained_breakdown(run)
    write_breakdown_csv(explained, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == len(document["rows"]) + len(document["rank_rows"]) + 2
    assert [line["rank"] for line in lines].count("") == len(document["rows"])
    assert [line["rank"] for line in lines if not line["operation"]] == ["0", "1"]
    assert int(lines[0]["bytes"]) == document["rows"][0]["bytes"]
    with pytest.raises(RequestError, match="cannot write"):
        write_breakdown_csv(explained, tmp_path / "no" / "out.csv")


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"run\.json"):
        breakdown(RunFolder(tmp_path))


def rendered(result: Breakdown) -> str:
    console = Console(width=80, file=None, record=True, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(table(result))
    return capture.get()


def test_the_table_fits_80_columns() -> None:
    calls = [
        (rank, operation, 100 * KIB << shift, 123_456_789 * (shift + 1), 2)
        for rank in (0, 1)
        for operation in (1, 2)
        for shift in range(11)
    ]
    text = rendered(result_of(calls * 7, "study"))
    assert "…" not in text
    assert "16-32 MiB" in text


def test_units_for_people() -> None:
    assert [human_bytes(size) for size in (0, 1023, 1024, 1536, 128 * KIB, 1023 * MIB, 3 * GIB)] == [
        *("0 B", "1023 B", "1 KiB", "1.5 KiB", "128 KiB", "1023 MiB", "3 GiB")
    ]
    assert [human_seconds(time) for time in (0, 4e-9, 1.5e-6, 0.0123, 1, 4000)] == [
        "0 ns",
        "4 ns",
        "1.5 us",
        "12.3 ms",
        "1 s",
        "4000 s",
    ]
    ranges = [(0, 0), (1, 128 * KIB), (128 * KIB + 1, 16 * MIB), (16 * MIB + 1, 32 * MIB), (64 * MIB + 1, None), (2, 2)]
    assert [human_range(*limits) for limits in ranges] == [
        "0 B",
        "1 B-128 KiB",
        "128 KiB-16 MiB",
        "16-32 MiB",
        "> 64 MiB",
        "2 B",
    ]
