"""Jobs and costs for the tests of the model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvscale.prediction.model.costs import Burst
from hvscale.prediction.model.job import PredictedJob

Floats = NDArray[np.float64]


def make_job(
    ready: Floats,
    sizes: list[int],
    *,
    after: float = 0.01,
    dtypes: list[str] | None = None,
    groups: list[str | None] | None = None,
) -> PredictedJob:
    """`ready`: (ranks, steps, tensors)."""
    count = len(sizes)
    return PredictedJob(
        name="job",
        names=[f"tensor.{number}" for number in range(count)],
        dtypes=dtypes or ["float32"] * count,
        groups=groups or [None] * count,
        bytes=np.array(sizes, np.int64),
        ready=ready,
        after=np.full(ready.shape[:2], after),
        images=4.0,
        recorded_np=len(ready),
        settings={},
        recorded_seconds=ready.max(axis=2) + after,
    )


def regular_job(sizes: list[int], interval: float = 0.01, ranks: int = 2, steps: int = 4) -> PredictedJob:
    """All ranks enqueue a tensor every `interval` seconds."""
    ready = np.tile(interval * np.arange(1, len(sizes) + 1), (ranks, steps, 1))
    return make_job(ready, sizes)


@dataclass(frozen=True)
class SimpleCosts:
    """Each message takes `start_seconds` and its bytes' time on the link."""

    start_seconds: float = 0.0
    bytes_per_second: float = 1e9
    agreement: float = 1e-5
    copy: float = 0.0
    blocking: bool = True
    largest_np: int = 4
    description: str = "a test"
    burst: Burst | None = None
    enqueue: float = 0.0

    def message_seconds(self, bytes: Floats, np: int, burst: Floats | float = 0.0) -> Floats:
        return self.start_seconds + (bytes - burst) / self.bytes_per_second

    def sent_bytes(self, bytes: Floats, np: int) -> Floats:
        return bytes

    def agreement_seconds(self, np: int) -> float:
        return self.agreement

    def enqueue_seconds(self, np: int) -> float:
        return self.enqueue

    def copy_seconds(self, bytes: Floats, np: int) -> Floats:
        return bytes * self.copy
