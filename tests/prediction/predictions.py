"""A synthetic prediction, for tests of its tables, figures and page."""

from math import log2

from hvscale.prediction.document import (
    Loss,
    MessageSizes,
    PredictedRow,
    PredictionCheck,
    PredictionDocument,
    StepTimeline,
    TimedMessage,
)
from hvscale.studies.document import ResultSource

MIB = 1 << 20
COMPUTE = 0.080  # seconds
IMAGES = 16  # of a rank in a step
MEASURED = 4  # the largest measured np
TENSORS = 60


def loss_at(np: int) -> Loss:
    """The parts grow with np; a rank alone loses nothing."""
    steps = log2(np)
    return Loss(
        agreement_seconds=0.0008 * steps,
        slowest_rank_seconds=0.0015 * steps,
        wire_seconds=0.012 * (1 - 1 / np),
        copies_seconds=0.0012,
    )


def row_at(np: int, source: ResultSource = "predicted", factor: float = 1.0, images: bool = True) -> PredictedRow:
    """A row whose step is `factor` times the modelled one; intervals widen beyond MEASURED."""
    loss = loss_at(np)
    lost = loss.agreement_seconds + loss.slowest_rank_seconds + loss.wire_seconds + loss.copies_seconds
    step = factor * (COMPUTE + lost)
    width = 0.02 * (1 + log2(max(1, np / MEASURED)))
    low, high = step * (1 - width), step * (1 + width)
    predicted = source in ("predicted", "documented")
    throughput = {
        "images_per_second": np * IMAGES / step,
        "images_per_second_low": np * IMAGES / high,
        "images_per_second_high": np * IMAGES / low,
    }
    return PredictedRow(
        np=np,
        source=source,
        extrapolation=max(1.0, np / MEASURED) if predicted else 1.0,
        step_seconds=step,
        step_seconds_low=low,
        step_seconds_high=high,
        speed_up=np * COMPUTE / step,
        scaling_efficiency=COMPUTE / step,
        scaling_efficiency_low=COMPUTE / high,
        scaling_efficiency_high=COMPUTE / low,
        exposed_seconds=step - COMPUTE,
        **(throughput if images else {}),
        loss=loss if predicted else None,
        messages=[
            MessageSizes(bytes_min=1, bytes_max=128 << 10, calls=1.5, bytes=64 << 10),
            MessageSizes(bytes_min=(128 << 10) + 1, bytes_max=16 * MIB, calls=3, bytes=22 * MIB),
            MessageSizes(bytes_min=64 * MIB + 1, bytes_max=None, calls=1, bytes=75 * MIB),
        ]
        if predicted
        else [],
    )


def step_of(source: ResultSource, late: float = 0.0) -> StepTimeline:
    """Five messages of growing size; gradients from 30 to 78 ms, unknown in a recorded step."""
    starts = [0.031 + late, 0.040 + late, 0.052 + late, 0.066 + late, 0.079 + late]
    sizes = [2 * MIB, 9 * MIB, 17 * MIB, 25 * MIB, 44 * MIB]
    is_recorded = source in ("measured", "replayed")
    tensors = 0 if is_recorded else 12
    return StepTimeline(
        np=MEASURED,
        source=source,
        step_seconds=0.0945 + late,
        ready_seconds=[] if is_recorded else [0.030 + 0.048 * number / (TENSORS - 1) for number in range(TENSORS)],
        messages=[
            TimedMessage(start_seconds=start, end_seconds=start + 0.002 + size / (4 << 30), bytes=size, tensors=tensors)
            for start, size in zip(starts, sizes, strict=True)
        ],
        agreement_seconds=[(start - 0.0012, start - 0.0002) for start in starts],
    )


def prediction(images: bool = True) -> PredictionDocument:
    """Measured to np 4, replayed to 32, predicted to 512."""
    nps = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    return PredictionDocument(
        command=["hvscale", "predict", "runs/edsr", "runs/replay-4", "--np", "1,512", "--set", "fusion_threshold=16M"],
        runs=["runs/edsr", "runs/replay-4"],
        measured_np=[2, MEASURED],
        settings={"fusion_threshold": "16M", "cycle_time": "1"},
        network="measured with hvscale bench on 2 to 4 ranks, links of 1 Gbit/s",
        compute_seconds=COMPUTE,
        gradient_bytes=97 * MIB,
        warnings=["np 1024 was left out"],
        rows=[
            *(row_at(np, "measured", 1.01, images) for np in (2, 4)),
            *(row_at(np, "replayed", 0.985, images) for np in (8, 16, 32)),
            *(row_at(np, images=images) for np in nps),
        ],
        checks=[PredictionCheck(np=2, step_seconds=0.0904, predicted_seconds=0.0895, error_percent=-1.0)],
        timelines=[step_of("measured"), step_of("predicted", late=0.0015)],
    )
