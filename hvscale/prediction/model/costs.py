"""What messages cost: the interface between Horovod's loop and measured or documented networks."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Of a core, for a rank to enqueue a tensor: replays needed 50 to 76 us (benchmarks/RESULTS.md).
ENQUEUE_SECONDS = 60e-6
MOST_ENQUEUEING = 0.95  # of a core's time; the rest is left for messages


class Burst(NamedTuple):
    """A link that lets `bytes` pass at once after a pause, and refills at `bytes_per_second`."""

    bytes: float
    bytes_per_second: float


class Costs(Protocol):
    """The seconds of what Horovod's background thread does, on np ranks."""

    @property
    def blocking(self) -> bool:
        """Whether a message blocks the thread: with MPI and Gloo, not with NCCL."""

    @property
    def largest_np(self) -> int:
        """The largest measured number of ranks; 0 if nothing was measured."""

    @property
    def description(self) -> str:
        """Where the figures come from, for people."""

    @property
    def burst(self) -> Burst | None:
        """What each node's link lets pass at once; None for links of constant speed."""

    def message_seconds(self, bytes: Floats, np: int, burst: Floats | float = 0.0) -> Floats:
        """All-reduces of so many bytes, of any shape; the link lets `burst` bytes pass at once."""

    def sent_bytes(self, bytes: Floats, np: int) -> Floats:
        """The bytes that a node sends over its link in these all-reduces."""

    def agreement_seconds(self, np: int) -> float:
        """One agreement on the tensors that are ready."""

    def copy_seconds(self, bytes: Floats, np: int) -> Floats:
        """Copies of a fused message into the fusion buffer and out of it, together."""

    def enqueue_seconds(self, np: int) -> float:
        """What all ranks of a core need of it to enqueue a tensor; 0 where messages do not wait."""


def seconds_to_enqueue(crowding: float) -> float:
    """What all ranks of a core need of it to enqueue a tensor; 0 if each rank has a core."""
    return crowding * ENQUEUE_SECONDS if crowding > 1 else 0.0


@dataclass(frozen=True)
class HorovodSettings:
    """Horovod's knobs that decide which messages it sends; defaults of Horovod 0.28."""

    cycle_seconds: float = 1e-3
    fusion_bytes: int = 128 << 20
    cache_capacity: int = 1024
