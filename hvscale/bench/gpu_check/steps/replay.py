"""`hvscale replay` of a training that was recorded on GPUs, with its tensors on GPUs."""

from hvscale.bench.gpu_check.commands import CommandFailedError
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.units import human_seconds

NP = 2
TRAINING = {
    "cuda": ("edsr-baseline", "--batch-size", 16, "--steps", 60),
    "cpu": ("edsr", "--n-resblocks", 2, "--n-feats", 8, "--patch-size", 16, "--batch-size", 2, "--steps", 6),
}
CLAIM = "replay: tensors on the GPU, in steps as long as the recorded training's"
LARGEST_ERROR = 0.1


@step(
    "replay",
    "replay: a recorded training's gradients from GPU to GPU, in steps as long as the training's",
    order=37,
    limit_seconds=40,
)
def replay(context: StepContext) -> None:
    with context.claim(CLAIM):
        training = ("hvscale", "train", *TRAINING[context.device])
        recorded = context.launch("recorded", NP, training, "--gradients", verb="profile")
        _, *options = context.hvscale_words("replay", NP, "replayed")
        done = context.hvscale("replay", *options, recorded.path, "--json")
        warnings = [line for line in done.stderr.splitlines() if "recorded on GPUs" in line]
        if warnings:
            raise CommandFailedError("the replay did not use the GPU as recorded", warnings)
        document = context.parse(done.stdout, "hvscale replay --json")
        sides = document["recorded"], document["replayed"]
        before, after = (float(side["mean_seconds"]) for side in sides)
        messages = [side["messages"] for side in sides]
        error = after / before - 1
        context.hold_timing(
            CLAIM,
            abs(error) <= LARGEST_ERROR,
            f"{human_seconds(after)} a step, recorded {human_seconds(before)} ({100 * error:+.1f} %); "
            f"fused messages a step: {show(messages[1])}, recorded {show(messages[0])}",
            f"the mean step differs by {100 * error:+.1f} %, more than {100 * LARGEST_ERROR:g} %",
            recorded_seconds=before,
            replayed_seconds=after,
            recorded_messages=messages[0],
            replayed_messages=messages[1],
        )


def show(messages: float | None) -> str:
    return "unknown" if messages is None else f"{messages:.1f}"
