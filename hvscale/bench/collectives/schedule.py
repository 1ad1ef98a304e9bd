"""How many calls are timed at each size."""

from dataclasses import dataclass

from hvscale.bench.collectives.sizes import parse_size
from hvscale.core.errors import RequestError
from hvscale.core.numbers import read_whole

# As OSU's benchmarks: many calls where one is short. 20 is nccl-tests' number.
DEFAULT_ITERATIONS, DEFAULT_WARMUP = "8K:1000,1M:100,20", "8K:100,1M:10,3"
MOST_CALLS = 10**9
SAMPLES = 20  # the calls of a size are timed in so many parts, which tell the interval


@dataclass(frozen=True)
class Schedule:
    """`steps`: up to how many bytes, how many calls; `beyond`: for all larger ones."""

    steps: tuple[tuple[int, int], ...]
    beyond: int

    @classmethod
    def parse(cls, option: str, text: str, least: int) -> "Schedule":
        """`20`, or `8K:1000,1M:100,20`. Raises RequestError."""
        *steps, beyond = text.split(",")
        pairs = [step.partition(":") for step in steps]
        calls = [read_whole(number, 0, MOST_CALLS) for number in (beyond, *(pair[2] for pair in pairs))]
        if None in calls:
            raise RequestError(
                f"{option} {text}: write a number of calls, or numbers up to sizes and one for what is beyond: {DEFAULT_ITERATIONS}"
            )
        found = cls(tuple((parse_size(option, size), int(number)) for size, _, number in pairs), int(beyond))
        limits = [limit for limit, _ in found.steps]
        if limits != sorted(set(limits)):
            raise RequestError(f"{option} {text}: the sizes must grow")
        if min([found.beyond, *(number for _, number in found.steps)]) < least:
            raise RequestError(f"{option} {text}: at least {least} is needed")
        return found

    def of(self, size: int) -> int:
        return next((number for limit, number in self.steps if size <= limit), self.beyond)


def parts(iterations: int) -> tuple[int, int]:
    """Samples, and the calls in each: together at least `iterations` calls."""
    samples = min(SAMPLES, iterations)
    return samples, -(-iterations // samples)
