"""The phases of Horovod's messages (negotiation, queueing, copies, communication) by operation, and
how well Horovod fuses tensors.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.core.run_folder import RunRecord
from hvscale.core.units import MIB
from hvscale.profiling.read.events import PHASES, HorovodMessages

THRESHOLD_VARIABLE = "HOROVOD_FUSION_THRESHOLD"
DEFAULT_THRESHOLD = 128 * MIB  # Horovod 0.28.1, common/operations.cc


class OperationPhases(BaseModel):
    """The messages of one operation; seconds are sums over messages, not over fused tensors.

    `negotiation_seconds`: from when the first rank has a tensor until all ranks have all tensors.
    `queueing_seconds`: from then until Horovod starts the message, plus waiting for its data.
    `other_seconds`: the rest, such as allocating the output.
    """

    operation: str
    messages: int
    tensors: int
    negotiation_seconds: float
    queueing_seconds: float
    copy_in_seconds: float
    communication_seconds: float
    copy_out_seconds: float
    other_seconds: float


class TensorsBin(BaseModel):
    """The number of messages with a number of tensors in this range, both limits inclusive."""

    tensors_min: int
    tensors_max: int
    messages: int


class Fusion(BaseModel):
    """How Horovod fused tensors, over all operations.

    `fill_*`: the bytes of a fused message over `threshold_bytes`. None without a fused message of
    known size, if the threshold is 0 (no fusion), or if it is unknown because Horovod autotunes it.
    """

    tensors_per_message_mean: float
    tensors_per_message_max: int
    tensors_per_message: list[TensorsBin]
    threshold_bytes: int | None
    fused_messages: int
    fill_mean: float | None
    fill_p50: float | None
    fill_max: float | None


class HorovodPhases(BaseModel):
    """The phases in Horovod's timeline, which only rank 0 writes.

    Calls and seconds are rank 0's, and phases of different messages overlap.
    """

    rank: int
    operations: list[OperationPhases]
    fusion: Fusion


def horovod_phases(messages: Iterable[HorovodMessages], record: RunRecord) -> HorovodPhases | None:
    """The phases of the messages in a timeline, given piece by piece; None without messages."""
    counts: defaultdict[str, NDArray[np.int64]] = defaultdict(lambda: np.zeros(2, np.int64))  # messages, tensors
    seconds: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(PHASES)))
    fusion = _FusionCounts()
    for piece in messages:
        fusion.add(piece)
        for code in np.unique(piece.operation).tolist():
            chosen = piece.operation == code
            counts[piece.operations[code]] += (chosen.sum(), piece.tensors[chosen].sum())
            seconds[piece.operations[code]] += piece.phases_ns[chosen].sum(axis=0, dtype=np.float64) / 1e9
    if not counts:
        return None
    rows = [
        OperationPhases(
            operation=name,
            messages=int(counts[name][0]),
            tensors=int(counts[name][1]),
            **{f"{phase}_seconds": spent for phase, spent in zip(PHASES, seconds[name].tolist(), strict=True)},
        )
        for name in counts
    ]
    rows.sort(key=lambda row: -row.communication_seconds)
    return HorovodPhases(rank=0, operations=rows, fusion=fusion.result(fusion_threshold(record)))


def fusion_threshold(record: RunRecord) -> int | None:
    """The fusion threshold in bytes from the job's environment; None if Horovod autotunes it.

    Does not see a threshold that the script itself sets.
    """
    environment = {**record.env_asked, **record.rank_environment}
    if _parse_number(environment.get("HOROVOD_AUTOTUNE", "0")) > 0:
        return None
    return _parse_number(environment[THRESHOLD_VARIABLE]) if THRESHOLD_VARIABLE in environment else DEFAULT_THRESHOLD


def _parse_number(text: str) -> int:
    """Parses a number as strtol does, which Horovod uses."""
    leading = re.match(r"\s*[+-]?\d+", text)
    return int(leading[0]) if leading else 0


class _FusionCounts:
    """Counts messages by their number of tensors, and fused messages by size.

    Both have few distinct values: every step sends the same tensors.
    """

    def __init__(self) -> None:
        self.by_tensors: Counter[int] = Counter()
        self.fused_by_bytes: Counter[int] = Counter()
        self.fused = 0

    def add(self, messages: HorovodMessages) -> None:
        _count(self.by_tensors, messages.tensors)
        is_fused = messages.tensors > 1
        _count(self.fused_by_bytes, messages.bytes[is_fused & messages.sized])
        self.fused += int(is_fused.sum())

    def result(self, threshold: int | None) -> Fusion:
        bins: Counter[int] = Counter()
        for tensors, count in self.by_tensors.items():
            bins[(tensors - 1).bit_length()] += count  # 1, 2, 3-4, 5-8, ...
        messages = self.by_tensors.total()
        return Fusion(
            tensors_per_message_mean=sum(tensors * count for tensors, count in self.by_tensors.items()) / messages,
            tensors_per_message_max=max(self.by_tensors),
            tensors_per_message=[
                TensorsBin(
                    tensors_min=2 ** (exponent - 1) + 1 if exponent else 1,
                    tensors_max=2**exponent,
                    messages=bins[exponent],
                )
                for exponent in sorted(bins)
            ],
            threshold_bytes=threshold,
            fused_messages=self.fused,
            **self._fill(threshold),
        )

    def _fill(self, threshold: int | None) -> dict[str, float | None]:
        if not threshold or threshold < 0 or not self.fused_by_bytes:
            return {"fill_mean": None, "fill_p50": None, "fill_max": None}
        sizes = sorted(self.fused_by_bytes)
        counted = np.cumsum([self.fused_by_bytes[size] for size in sizes])
        count = int(counted[-1])
        middle = [sizes[int(np.searchsorted(counted, place, side="right"))] for place in ((count - 1) // 2, count // 2)]
        total = sum(size * number for size, number in self.fused_by_bytes.items())
        return {
            "fill_mean": total / count / threshold,
            "fill_p50": sum(middle) / 2 / threshold,
            "fill_max": sizes[-1] / threshold,
        }


def _count(counts: Counter[int], values: NDArray[np.int64]) -> None:
    distinct, times = np.unique(values, return_counts=True)
    for value, number in zip(distinct.tolist(), times.tolist(), strict=True):
        counts[value] += number
