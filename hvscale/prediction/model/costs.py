"""What messages cost: the interface between Horovod's loop and measured or documented networks."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Costs(Protocol):
    """The seconds of what Horovod's background thread does, on np ranks."""

    blocking: bool
    """MPI and Gloo block the thread until a message is through; NCCL does not."""
    largest_np: int
    """The largest measured number of ranks; 0 if nothing was measured."""
    description: str
    """Where the figures come from, for people."""

    def message_seconds(self, bytes: Floats, np: int) -> Floats:
        """All-reduces of so many bytes, of any shape."""

    def agreement_seconds(self, np: int) -> float:
        """One agreement on the tensors that are ready."""

    def copy_seconds(self, bytes: Floats) -> Floats:
        """Copies of a fused message into the fusion buffer and out of it, together."""


@dataclass(frozen=True)
class HorovodSettings:
    """Horovod's knobs that decide which messages it sends; defaults of Horovod 0.28."""

    cycle_seconds: float = 1e-3
    fusion_bytes: int = 128 << 20
    cache_capacity: int = 1024
