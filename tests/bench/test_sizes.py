"""Message sizes, iterations, and size, count and busbw as nccl-tests defines them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.bench.collectives import elements, sizes
from hvscale.bench.collectives.backends import BACKENDS, select, supported_paths
from hvscale.bench.collectives.document import BenchRow, crossovers, make_row
from hvscale.bench.collectives.memory import check_fits
from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.bench.collectives.request import SAMPLES, MeasuredSize, Schedule, samples_and_calls
from hvscale.core.errors import RequestError
from hvscale.core.statistics import summarise

FLOAT32 = elements.find_dtype("float32")


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("64K", 65536), ("1.5M", 3 << 19), ("1G", 1 << 30), ("2KiB", 2048), ("3mb", 3 << 20)]
)
def test_sizes_are_parsed_like_in_nccl_tests(text: str, size: int) -> None:
    assert sizes.parse_size("-b", text) == size


@pytest.mark.parametrize("text", ["", "0", "-4", "4T", "K", "1,000", "0.2"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match="--min-bytes"):
        sizes.series(text, "1M", None, None)


def test_series_by_factor_and_by_step() -> None:
    assert sizes.series("4", "64", None, None) == [4, 8, 16, 32, 64]
    assert sizes.series("4", "100", 5, None) == [4, 20, 100]
    assert sizes.series("1K", "4K", None, "1K") == [1024, 2048, 3072, 4096]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("8", "4", None, None), "--min-bytes 8 is more than --max-bytes 4"),
        (("4", "8", 2.0, "4"), "give either --step-factor or --step-bytes"),
        (("4", "8", 1.0, None), "must be above 1"),
        (("4", "8", float("nan"), None), "must be above 1"),
        (("4", "8", float("inf"), None), "must be above 1"),
    ],
)
def test_an_invalid_series_is_rejected(arguments: tuple[str, str, float | None, str | None], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sizes.series(*arguments)


def test_mlbench_has_80_sizes_from_1_to_10_to_the_8_elements() -> None:
    found = sizes.named_sizes("mlbench", FLOAT32)
    assert (len(found), found[0], found[-1]) == (80, 4, 4 * 10**8)
    ratios = [after / before for before, after in itertools.pairwise(found[40:])]
    assert ratios == pytest.approx([10 ** (8 / 79)] * 39, rel=1e-3)
    kept = sizes.messages(COLLECTIVES.get("allreduce"), FLOAT32, 2, found)
    assert 70 < len(kept) < 80  # several small sizes round to the same number of elements
    assert [message.count for message in kept] == sorted({size // 4 for size in found})


@given(
    st.sampled_from(sorted(set(COLLECTIVES.all()) - {"barrier"})),
    st.sampled_from(sorted(elements.DTYPES)),
    st.integers(2, 300),
    st.lists(st.integers(1, 1 << 33), min_size=1, max_size=5),
)
def test_a_message_has_whole_blocks_and_is_no_larger_than_requested(
    name: str, dtype: str, np: int, requested: list[int]
) -> None:
    collective, kind = COLLECTIVES.get(name), elements.find_dtype(dtype)
    unit = collective.blocks_in_buffer(np) * kind.bytes
    if max(requested) // unit > sizes.LARGEST_COUNT:
        with pytest.raises(RequestError, match="more than MPI can count"):
            sizes.messages(collective, kind, np, requested)
        return
    found = sizes.messages(collective, kind, np, requested)
    assert len({message.bytes for message in found}) == len(found)
    for message in found:
        assert message.bytes == message.count * unit
    for size in requested:
        assert max(unit, size - size % unit) in {message.bytes for message in found}


# Computed by hand for 4 ranks from nccl-tests' doc/PERFORMANCE.md.
@pytest.mark.parametrize(
    ("name", "factor", "blocks"),
    [
        ("allreduce", 1.5, 1),
        ("reduce-scatter", 0.75, 4),
        ("allgather", 0.75, 4),
        ("gather", 0.75, 4),
        ("alltoall", 0.75, 4),
        ("broadcast", 1, 1),
        ("reduce", 1, 1),
    ],
)
def test_busbw_and_size_equal_those_of_nccl_tests(name: str, factor: float, blocks: int) -> None:
    collective = COLLECTIVES.get(name)
    assert collective.bus_factor(4) == factor
    assert collective.blocks_in_buffer(4) == blocks
    measured = MeasuredSize(
        bytes=10**6, count=1, in_place=False, calls_per_sample=3, seconds=[1e-3, 3e-3], rank_seconds=[1e-3, 2e-3]
    )
    row = make_row("openmpi", measured, collective.bus_factor(4))
    assert (row.seconds, row.seconds_min, row.seconds_max, row.iterations) == (2e-3, 1e-3, 3e-3, 6)
    assert row.algbw_gigabytes_per_second == pytest.approx(0.5)
    assert row.busbw_gigabytes_per_second == pytest.approx(0.5 * factor)


def test_the_interval_is_student_s() -> None:
    found = summarise([1.0, 2.0, 3.0, 4.0])
    # Computed by hand: s = 1.29099, t(3 degrees, 0.975) = 3.18245.
    assert (found.mean, found.low, found.high) == pytest.approx((2.5, 2.5 - 2.05426, 2.5 + 2.05426), abs=1e-4)
    assert found.half_width_percent == pytest.approx(82.17, abs=0.01)
    assert summarise([1.0]).half_width_percent is None


def test_iterations_by_size() -> None:
    schedule = Schedule.parse("-n", "8K:1000,1M:100,20", 1)
    assert [schedule.calls(size) for size in (4, 8192, 8193, 1 << 20, 1 << 30)] == [1000, 1000, 100, 100, 20]
    assert Schedule.parse("-n", "7", 1).calls(10**9) == 7
    for wrong in ("", "x", "1M:5", "1M:5,8K:3,2", "0", "8K:,1", "-3"):
        with pytest.raises(RequestError, match="-n"):
            Schedule.parse("-n", wrong, 1)


@given(st.integers(1, 10**6))
def test_samples_contain_at_least_the_requested_iterations(iterations: int) -> None:
    samples, calls = samples_and_calls(iterations)
    assert iterations <= samples * calls < iterations + samples
    assert samples <= SAMPLES


def test_too_little_memory_is_rejected_with_the_calculation() -> None:
    check_fits(1 << 30, 2, 4, 8 << 30, "here")
    with pytest.raises(RequestError) as error:
        check_fits(1 << 30, 2, 4, (8 << 30) - 1, "here")
    assert "1073741824 bytes in each buffer x 2 buffers x 4 ranks = 8.00 GiB, and 8.00 GiB are free" in str(error.value)


def test_select_back_ends_by_name() -> None:
    assert [one.name for one in select([], "mpich")] == ["mpich"]
    assert [one.name for one in select(["mpich,mpi,horovod", "horovod-mpich"], "mpich")] == ["mpich", "horovod-mpich"]
    assert [one.name for one in select(["mpi,gloo", "horovod", "gloo"], "openmpi")] == [
        *("openmpi", "gloo", "horovod-openmpi"),
    ]
    with pytest.raises(RequestError, match=r"--backend glo: unknown back end; did you mean gloo\?"):
        select(["glo"], "openmpi")


@pytest.mark.parametrize(
    ("backend", "collective", "dtype", "device", "message"),
    [
        (
            "horovod-openmpi",
            "gather",
            "float32",
            "cpu",
            "does not support gather; supported by gloo, intelmpi, mpich, mvapich2, nccl, .*nccl-openmpi, openmpi$",
        ),
        ("horovod-gloo", "allreduce", "bfloat16", "cpu", "does not support bfloat16; .*openmpi"),
        (
            "nccl",
            "allreduce",
            "float32",
            "cpu",
            "nccl does not support cpu memory: use --device cuda, or one of .*openmpi",
        ),
        (
            "openmpi",
            "allreduce",
            "float32",
            "cuda",
            "openmpi does not support --path nccl on cuda memory; it supports staged, aware",
        ),
    ],
)
def test_an_unsupported_request_names_the_back_ends_that_support_it(
    backend: str, collective: str, dtype: str, device: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        supported_paths(BACKENDS.all()[backend], collective, dtype, device, ["nccl"] if device == "cuda" else [])  # type: ignore[arg-type]


def times(name: str, size: int, seconds: float, in_place: bool = False) -> BenchRow:
    spread = [0.99 * seconds, seconds, 1.01 * seconds]
    measured = MeasuredSize(
        bytes=size, count=size, in_place=in_place, calls_per_sample=1, seconds=spread, rank_seconds=[seconds]
    )
    return make_row(name, measured, 1)


def test_a_crossover_lies_between_sizes_with_significantly_different_winners() -> None:
    one = [times("one", size, seconds) for size, seconds in ((4, 1), (16, 2), (64, 8), (256, 30))]
    # Only in place, as with a single tensor; still compared. At 64 bytes the intervals overlap.
    other = [times("other", size, seconds, True) for size, seconds in ((4, 3), (16, 4), (64, 8.01), (256, 10))]
    [found] = crossovers([*one, *other])
    assert (found.faster_below, found.faster_above, found.bytes) == ("one", "other", 64)
    assert crossovers(one) == []
    for change in ({"wrong": 3}, {"seconds_low": None, "seconds_high": None}):  # wrong results, a single sample
        assert crossovers([*one, *(row.model_copy(update=change) for row in other)]) == []
