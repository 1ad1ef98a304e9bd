"""The phases of Horovod's messages (negotiation, queueing, copies, communication) by operation, and
how well Horovod fuses tensors.
"""

import re

import numpy as np
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


def horovod_phases(messages: HorovodMessages, record: RunRecord) -> HorovodPhases | None:
    """The phases of the messages in a timeline; None without messages."""
    if not len(messages.operation):
        return None
    rows = []
    for code in np.unique(messages.operation).tolist():
        chosen = messages.operation == code
        seconds = messages.phases_ns[chosen].sum(axis=0, dtype=np.float64) / 1e9
        rows.append(
            OperationPhases(
                operation=messages.operations[code],
                messages=int(chosen.sum()),
                tensors=int(messages.tensors[chosen].sum()),
                **{f"{phase}_seconds": spent for phase, spent in zip(PHASES, seconds.tolist(), strict=True)},
            )
        )
    rows.sort(key=lambda row: -row.communication_seconds)
    return HorovodPhases(rank=0, operations=rows, fusion=_fusion(messages, fusion_threshold(record)))


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


def _fusion(messages: HorovodMessages, threshold: int | None) -> Fusion:
    tensors = messages.tensors
    power = np.ceil(np.log2(tensors)).astype(np.int64)  # 1, 2, 3-4, 5-8, ...
    counts = np.bincount(power)
    bins = [
        TensorsBin(
            tensors_min=2 ** (exponent - 1) + 1 if exponent else 1,
            tensors_max=2**exponent,
            messages=int(counts[exponent]),
        )
        for exponent in np.flatnonzero(counts).tolist()
    ]
    fused = messages.bytes[(tensors > 1) & messages.sized]
    fill = fused / threshold if threshold and threshold > 0 and len(fused) else None
    return Fusion(
        tensors_per_message_mean=float(tensors.mean()),
        tensors_per_message_max=int(tensors.max()),
        tensors_per_message=bins,
        threshold_bytes=threshold,
        fused_messages=int((tensors > 1).sum()),
        fill_mean=None if fill is None else float(fill.mean()),
        fill_p50=None if fill is None else float(np.median(fill)),
        fill_max=None if fill is None else float(fill.max()),
    )
