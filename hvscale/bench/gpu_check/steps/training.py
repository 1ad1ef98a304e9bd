"""Training under Horovod beside one process, and an overflow of the fp16 loss scale."""

from pathlib import Path

from hvscale.bench.gpu_check.rank_side.requests import OVERFLOW_STEP
from hvscale.bench.gpu_check.step import RANK_SIDE, StepContext, step
from hvscale.bench.gpu_check.steps._training import SIDE, make_images, steps_of

NP, BATCH, EPOCHS = 2, 8, 3
# Of the loss: sums of the same fp32 numbers in another order.
LARGEST_DIFFERENCE = 1e-3
OVERFLOW_STEPS = 8
# Both libraries compute fp32 without TF32.
IEEE = "NVIDIA_TF32_OVERRIDE=0"


@step(
    "training",
    "training on 2 ranks gives one process's losses; the fp16 loss scaler skips a step that overflows",
    order=90,
    limit_seconds=60,
)
def training(context: StepContext) -> None:
    images = make_images(context)
    with context.claim("2 ranks train as one process does"):
        equal_losses(context, images)
    with context.claim("the fp16 loss scaler skips a step that overflows"):
        overflow(context, images)


def equal_losses(context: StepContext, images: Path) -> None:
    """Compare the mean loss of each epoch: the same images, in one batch or in two halves."""
    command = train("classifier", images, "--precision", "fp32", "--epochs", EPOCHS)
    one = context.launch("one-process", 1, [*command, "--batch-size", NP * BATCH], "--env", IEEE)
    two = context.launch("two-ranks", NP, [*command, "--batch-size", BATCH], "--env", IEEE)
    losses = [[row["epoch_loss"] for row in steps_of(run.path) if row["epoch_loss"]] for run in (one, two)]
    differences = [abs(left - right) / left for left, right in zip(*losses, strict=False)]
    largest = max(differences, default=1.0)
    context.hold(
        f"{NP} ranks train as one process does",
        len(differences) == EPOCHS and largest <= LARGEST_DIFFERENCE,
        f"loss of {EPOCHS} epochs {losses[0][0]:.4f} to {losses[0][-1]:.4f}, largest difference {largest:.2g}",
        f"one process: {losses[0]}, {NP} ranks: {losses[1]}",
        relative_difference=largest,
    )


def overflow(context: StepContext, images: Path) -> None:
    """One step's gradients overflow fp16: all ranks skip it, and halve the loss scale."""
    options = ("--precision", "fp16", "--steps", OVERFLOW_STEPS, "--checkpoint-every", OVERFLOW_STEPS)
    run = context.launch("overflow", NP, [*train("overflowing", images, *options), "--batch-size", BATCH])
    rows = steps_of(run.path)
    skipped = [row["step"] for row in rows if row["skipped"]]
    checkpoint = run.path / "checkpoints" / f"step-{OVERFLOW_STEPS:09}.ckpt"
    asked = context.run("loss-scale", context.program("loss_scale", checkpoint))
    scale, first = context.parse(asked.stdout, "the loss scale")["scale"], 2.0**16  # GradScaler's default
    context.hold(
        "the fp16 loss scaler skips a step that overflows",
        skipped == [OVERFLOW_STEP] and scale == first / 2 and all(row["loss"] is not None for row in rows),
        f"step {OVERFLOW_STEP} of {len(rows)} skipped, scale {first:g} -> {scale:g}",
        f"skipped steps {skipped}, expected {[OVERFLOW_STEP]}; scale {scale:g}, expected {first / 2:g}",
        skipped=len(skipped),
        loss_scale=scale,
    )


def train(model: str, images: Path, *options: object) -> list[object]:
    return [
        *("hvscale", "train", f"{RANK_SIDE}.models:{model}", "--data", images, "--image-size", SIDE),
        *("--memory-format", "contiguous", "--threads", 1, "--stall-timeout", 60),
        *options,
    ]
