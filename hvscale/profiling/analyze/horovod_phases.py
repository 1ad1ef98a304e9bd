"""What Horovod does with a message before and after it moves: by operation, and how well it fuses
tensors.
"""

import re

import numpy as np
from pydantic import BaseModel

from hvscale.core.run_folder import RunRecord
from hvscale.core.units import MIB
from hvscale.profiling.read.events import PHASES, HorovodMessages

THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
DEFAULT_THRESHOLD = 128 * MIB  # of Horovod 0.28.1, common/operations.cc


class OperationPhases(BaseModel):
    """One operation's messages. Seconds are summed over messages, each counted once however many
    tensors were fused into it.

    `negotiation_seconds`: until all ranks had the tensors, from when the first rank had one;
    `queueing_seconds`: from then until the message was worked on, and waiting for data in it;
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
    """How many messages were made of so many tensors, both limits inclusive."""

    tensors_min: int
    tensors_max: int
    messages: int


class Fusion(BaseModel):
    """How tensors were fused, over all operations.

    `fill_*`: the bytes of a message of more than one tensor, over `threshold_bytes`; None where
    there is none whose size is known, or the threshold is not known, because Horovod's autotuning
    changes it, or 0, which means no fusion.
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
    """Of Horovod's timeline, which rank 0 writes: calls and seconds are that rank's alone, and
    phases of different messages overlap.
    """

    rank: int
    operations: list[OperationPhases]
    fusion: Fusion


def horovod_phases(messages: HorovodMessages, record: RunRecord) -> HorovodPhases | None:
    """None where the timeline holds no message."""
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
    """Bytes, as the job was started with them. None where Horovod tunes it itself; a script that
    sets it for itself is not seen.
    """
    environment = {**record.env_asked, **record.rank_environment}
    if _number(environment.get("HOROVOD_AUTOTUNE", "0")) > 0:
        return None
    return _number(environment[THRESHOLD]) if THRESHOLD in environment else DEFAULT_THRESHOLD


def _number(text: str) -> int:
    """As strtol reads it, with which Horovod does."""
    leading = re.match(r"\s*[+-]?\d+", text)
    return int(leading[0]) if leading else 0


def _fusion(messages: HorovodMessages, threshold: int | None) -> Fusion:
    tensors = messages.tensors
    power = np.ceil(np.log2(tensors)).astype(np.int64)  # 1, 2, 3-4, 5-8, ...
    counts = np.bincount(power)
    bins = [
        TensorsBin(tensors_min=2 ** (place - 1) + 1 if place else 1, tensors_max=2**place, messages=int(counts[place]))
        for place in np.flatnonzero(counts).tolist()
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
