"""The sizes of messages to measure, as nccl-tests' options give them, or as a study's list."""

import math
import re
from dataclasses import dataclass

from hvscale.bench.collectives import Collective
from hvscale.bench.dtypes import Dtype
from hvscale.errors import RequestError

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
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
    """`8`, `64K`, `1.5M`, `1G`: powers of 1024, as nccl-tests reads them. Raises RequestError for anything else, and below 1."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise RequestError(f"{option} {text}: not a number of bytes; write 8, 64K, 1M or 1G")
    return size


def series(smallest: str, largest: str, factor: float | None, step: str | None) -> list[int]:
    """From `smallest` to `largest` bytes, each `factor` times the one before it, or `step` bytes more. Raises RequestError."""
    first, last = parse_size("--min-bytes", smallest), parse_size("--max-bytes", largest)
    if last < first:
        raise RequestError(f"--min-bytes {smallest} is more than --max-bytes {largest}: exchange them")
    if factor is not None and step is not None:
        raise RequestError("--step-factor and --step-bytes: give one of them")
    if step is not None:
        return list(range(first, last + 1, parse_size("--step-bytes", step)))
    times = DEFAULT_FACTOR if factor is None else factor
    if not times > 1 or math.isinf(times):
        raise RequestError(f"--step-factor {times:g}: a number above 1 is needed, such as 2")
    found, size = [], float(first)
    while size <= last:
        found.append(int(size))
        size *= times
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
