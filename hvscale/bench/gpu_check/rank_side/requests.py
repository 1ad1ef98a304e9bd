"""What the controller asks of the programs beside this file. Does not import torch."""

from dataclasses import dataclass
from typing import Any

OVERFLOW_STEP = 4  # the training step in which the model `overflowing` overflows fp16


@dataclass(frozen=True)
class ThroughputVariant:
    name: str
    tf32: bool = False
    bf16: bool = False
    channels_last: bool = False
    compiled: bool = False
    graph: bool = False


VARIANTS = (
    ThroughputVariant("fp32"),
    ThroughputVariant("TF32", tf32=True),
    ThroughputVariant("bf16", bf16=True),
    ThroughputVariant("bf16 + channels_last", bf16=True, channels_last=True),
    ThroughputVariant("bf16 + channels_last, compiled", bf16=True, channels_last=True, compiled=True),
    ThroughputVariant("bf16 + channels_last, CUDA graph", bf16=True, channels_last=True, graph=True),
    ThroughputVariant(
        "bf16 + channels_last, compiled, CUDA graph", bf16=True, channels_last=True, compiled=True, graph=True
    ),
)


@dataclass(frozen=True)
class Request:
    """`options`: of the model. `side`: of its square inputs, in pixels. `seconds`: to measure each
    variant for, in `rounds` interleaved parts.
    """

    model: str
    options: dict[str, Any]
    side: int
    batch: int
    device: str
    rounds: int
    seconds: float
