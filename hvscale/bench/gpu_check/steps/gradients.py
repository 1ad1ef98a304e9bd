"""`hvscale profile --gradients`: the times of the gradients on the GPU, recorded and timed."""

from statistics import median
from typing import NamedTuple

from hvscale.bench.gpu_check.commands import CommandFailedError
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.units import human_seconds
from hvscale.profiling.read.gradients_file import GradientStep, read_gradients

NP = 2
STEPS = {"cuda": 20, "cpu": 4}
CLAIM = "profile --gradients: the recorded times of gradients are the GPU's"
# Both events follow the same kernel; the recorder's comes after Horovod took the tensor.
MOST_SECONDS = 0.5e-3


class Moment(NamedTuple):
    """When one gradient of a step was ready. Seconds after the step's start."""

    timed: float
    recorded: float
    enqueued: float


@step(
    "gradients",
    "profile --gradients: when the GPU had computed each gradient, as recorded and as the program timed it",
    order=35,
    limit_seconds=40,
)
def gradients(context: StepContext) -> None:
    with context.claim(CLAIM):
        steps = STEPS[context.device]
        run = context.launch(
            "recorded", NP, context.program("gradients", context.device, steps), "--gradients", verb="profile"
        )
        compare(context, run, steps)


def compare(context: StepContext, run: RunFolder, steps: int) -> None:
    moments: list[Moment] = []
    for rank, result in enumerate(context.rank_results(run, NP)):
        path = run.hvprof / f"gradients-{rank:05}.hvg"
        try:
            recorded = read_gradients(path).steps[1:]
        except RequestError as error:
            raise CommandFailedError(f"rank {rank} recorded no gradients: {error}", []) from error
        if len(recorded) != steps - 1:
            raise CommandFailedError(f"rank {rank} recorded {len(recorded) + 1} of {steps} steps", [])
        for one, timed in zip(recorded, result["seconds"], strict=True):
            if one.on_gpu is not None or not context.on_gpu:  # short steps are not all timed
                moments += moments_of(one, timed)
    if not moments:
        raise CommandFailedError("no step has times on the GPU", [])
    differences = [abs(moment.recorded - moment.timed) for moment in moments]
    ahead = median(moment.recorded - moment.enqueued for moment in moments)
    context.hold_timing(
        CLAIM,
        max(differences) <= MOST_SECONDS,
        f"{len(moments)} gradients, computed after {human_seconds(median(moment.timed for moment in moments))} (median); "
        f"recorded times differ by {human_seconds(median(differences))} (median), at most "
        f"{human_seconds(max(differences))}; the host enqueued them {human_seconds(abs(ahead))} earlier",
        f"a recorded time is {human_seconds(max(differences))} off",
        gradients=len(moments),
        median_difference_seconds=median(differences),
        largest_difference_seconds=max(differences),
        enqueued_before_seconds=ahead,
    )


def moments_of(step_: GradientStep, timed: list[float]) -> list[Moment]:
    """Raises CommandFailedError for a step of other gradients."""
    recorded = step_.enqueued if step_.on_gpu is None else step_.on_gpu.ready
    if len(recorded) != len(timed):
        raise CommandFailedError(f"step {step_.number} has {len(recorded)} of {len(timed)} gradients", [])
    return [Moment(*row) for row in zip(timed, recorded.tolist(), step_.enqueued.tolist(), strict=True)]
