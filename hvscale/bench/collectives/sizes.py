"""The message sizes to measure: a series as in nccl-tests, or a list."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from hvscale.bench.collectives.elements import Dtype
from hvscale.bench.collectives.operations import Collective
from hvscale.core.errors import RequestError
from hvscale.core.numbers import MOST_SIZES, read_size

DEFAULT_MIN, DEFAULT_MAX, DEFAULT_FACTOR = "4", "256M", 2.0
# Task 0 of MLBench: sizes evenly spaced in the logarithm, from 10^0 to 10^8 elements.
MLBENCH = "mlbench"
MLBENCH_SIZES, MLBENCH_POWER = 80, 8
LARGEST_COUNT = 2**31 - 1  # MPI's counts are ints


@dataclass(frozen=True)
class MessageSize:
    """One message size. `bytes`: as in the size column; `count`: elements in a block."""

    bytes: int
    count: int


def parse_size(option: str, text: str) -> int:
    """The bytes of a size such as `8`, `64K`, `1.5M` or `1G`; units are powers of 1024, as in
    nccl-tests.

    Raises RequestError for other text and for sizes below 1 or above 2^63 - 1.
    """
    size = read_size(text)
    if not size:
        raise RequestError(f"{option} {text}: invalid size; give bytes such as 8, 64K, 1M or 1G, up to 2^63 - 1")
    return size


def series(smallest: str, largest: str, factor: float | None, step: str | None) -> list[int]:
    """Sizes in bytes from `smallest` to `largest`, each the last one times `factor` or plus `step`.
    Raises RequestError.
    """
    first, last = parse_size("--min-bytes", smallest), parse_size("--max-bytes", largest)
    if last < first:
        raise RequestError(f"--min-bytes {smallest} is more than --max-bytes {largest}: swap them")
    if factor is not None and step is not None:
        raise RequestError("give either --step-factor or --step-bytes, not both")
    if step is not None:
        return limit_count(range(first, last + 1, parse_size("--step-bytes", step)), "raise --step-bytes")
    times = DEFAULT_FACTOR if factor is None else factor
    if not (times > 1 and math.isfinite(times)):
        raise RequestError(f"--step-factor {times:g}: must be above 1, such as 2")
    sizes = itertools.takewhile(lambda size: size <= last, (first * times**number for number in itertools.count()))
    return limit_count(map(int, sizes), "raise --step-factor")


def limit_count(sizes: Iterable[int], remedy: str) -> list[int]:
    """The sizes as a list. Raises RequestError if there are more than MOST_SIZES."""
    found = list(itertools.islice(sizes, MOST_SIZES + 1))
    if len(found) > MOST_SIZES:
        raise RequestError(f"more than {MOST_SIZES} message sizes: {remedy} or lower --max-bytes")
    return found


def named_sizes(text: str, dtype: Dtype) -> list[int]:
    """The sizes in bytes of `mlbench` or of a list such as `8,1K,1M`. Raises RequestError."""
    if text == MLBENCH:
        powers = [MLBENCH_POWER * number / (MLBENCH_SIZES - 1) for number in range(MLBENCH_SIZES)]
        return [round(10**power) * dtype.bytes for power in powers]
    return [parse_size("--sizes", word) for word in text.split(",")]


def messages(collective: Collective, dtype: Dtype, np: int, sizes: list[int]) -> list[MessageSize]:
    """The sizes rounded down to whole blocks of at least one element, without duplicates. Raises
    RequestError if a block has more elements than MPI can count.
    """
    if not collective.has_data:
        return [MessageSize(0, 0)]
    unit = collective.blocks_in_buffer(np) * dtype.bytes
    found = {}
    for size in sizes:
        count = max(1, size // unit)
        if count > LARGEST_COUNT:
            raise RequestError(
                f"{size} bytes: {count} {dtype.name} in a block, more than MPI can count ({LARGEST_COUNT}); lower --max-bytes"
            )
        found[count] = MessageSize(count * unit, count)
    return list(found.values())
