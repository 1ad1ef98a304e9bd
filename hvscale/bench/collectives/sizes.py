"""The sizes of messages to measure, as nccl-tests' options give them, or as a study's list."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from hvscale.bench.collectives.elements import Dtype
from hvscale.bench.collectives.operations import Collective
from hvscale.core.errors import RequestError
from hvscale.core.numbers import MOST_SIZES, read_size

DEFAULT_MIN, DEFAULT_MAX, DEFAULT_FACTOR = "4", "256M", 2.0
# Task 0 of MLBench, the study of raw back ends: this many sizes evenly in the logarithm, from 10^0 to 10^8 elements.
MLBENCH = "mlbench"
MLBENCH_SIZES, MLBENCH_POWER = 80, 8
LARGEST_COUNT = 2**31 - 1  # MPI's counts are ints


@dataclass(frozen=True)
class Message:
    """`bytes`: the size column; `count`: elements of a block."""

    bytes: int
    count: int


def parse_size(option: str, text: str) -> int:
    """`8`, `64K`, `1.5M`, `1G`: powers of 1024, as nccl-tests reads them. Raises RequestError for anything else, below 1 and beyond 2^63 - 1."""
    size = read_size(text)
    if not size:
        raise RequestError(f"{option} {text}: not a number of bytes; write 8, 64K, 1M or 1G, up to 2^63 - 1")
    return size


def series(smallest: str, largest: str, factor: float | None, step: str | None) -> list[int]:
    """From `smallest` to `largest` bytes, each `factor` times the one before it, or `step` bytes more. Raises RequestError."""
    first, last = parse_size("--min-bytes", smallest), parse_size("--max-bytes", largest)
    if last < first:
        raise RequestError(f"--min-bytes {smallest} is more than --max-bytes {largest}: exchange them")
    if factor is not None and step is not None:
        raise RequestError("--step-factor and --step-bytes: give one of them")
    if step is not None:
        return at_most(range(first, last + 1, parse_size("--step-bytes", step)), "raise --step-bytes")
    times = DEFAULT_FACTOR if factor is None else factor
    if not (times > 1 and math.isfinite(times)):
        raise RequestError(f"--step-factor {times:g}: a number above 1 is needed, such as 2")
    sizes = itertools.takewhile(lambda size: size <= last, (first * times**number for number in itertools.count()))
    return at_most(map(int, sizes), "raise --step-factor")


def at_most(sizes: Iterable[int], remedy: str) -> list[int]:
    """Raises RequestError for more sizes than a table may have."""
    found = list(itertools.islice(sizes, MOST_SIZES + 1))
    if len(found) > MOST_SIZES:
        raise RequestError(f"more than {MOST_SIZES} message sizes: {remedy} or lower --max-bytes")
    return found


def named_sizes(text: str, dtype: Dtype) -> list[int]:
    """In bytes: those of `mlbench`, or a list such as `8,1K,1M`. Raises RequestError."""
    if text == MLBENCH:
        powers = [MLBENCH_POWER * number / (MLBENCH_SIZES - 1) for number in range(MLBENCH_SIZES)]
        return [round(10**power) * dtype.bytes for power in powers]
    return [parse_size("--sizes", word) for word in text.split(",")]


def messages(collective: Collective, dtype: Dtype, np: int, sizes: list[int]) -> list[Message]:
    """Whole blocks, at least one element each: the sizes that come nearest below, each once. Raises RequestError for more than MPI counts."""
    if not collective.has_data:
        return [Message(0, 0)]
    unit = collective.largest(np) * dtype.bytes
    found = {}
    for size in sizes:
        count = max(1, size // unit)
        if count > LARGEST_COUNT:
            raise RequestError(
                f"{size} bytes: {count} {dtype.name} in a block, but MPI counts up to {LARGEST_COUNT}; lower --max-bytes"
            )
        found[count] = Message(count * unit, count)
    return list(found.values())
