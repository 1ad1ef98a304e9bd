"""Jobs known from documents: a model and one GPU's throughput.

Assumptions: the GPU needs the same time for each floating-point operation of a step, and the
optimizer takes no time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.models import find
from hvscale.models.cost import build_on_fake_tensors, gradients_in_order
from hvscale.prediction.model.job import PredictedJob

GradientType = Literal["float32", "float16"]
ELEMENT_BYTES: dict[GradientType, int] = {"float32": 4, "float16": 2}


@dataclass(frozen=True)
class Variation:
    """How computation varies, as relative standard deviations of the time of a whole step.

    `ranks`: from rank to rank, the same in all steps. `steps`: from step to step, each rank on its
    own. Both are normal and cut off at three standard deviations.
    """

    ranks: float = 0.0
    steps: float = 0.0
    seed: int = 0
    sampled_ranks: int = 16
    sampled_steps: int = 64

    def factors(self) -> NDArray[np.float64]:
        """(ranks, steps): the time of each step over the mean; (1, 1) without variation."""
        if not self.ranks and not self.steps:
            return np.ones((1, 1))
        generator = np.random.default_rng(self.seed)
        of_ranks = generator.standard_normal((self.sampled_ranks, 1)).clip(-3, 3)
        of_steps = generator.standard_normal((self.sampled_ranks, self.sampled_steps)).clip(-3, 3)
        factors: NDArray[np.float64] = np.maximum(1 + self.ranks * of_ranks + self.steps * of_steps, 0.01)
        factors /= factors.mean()  # the documented throughput is that of the average rank and step
        return factors


def model_job(
    model: str,
    *,
    images_per_second: float,
    batch: int,
    dtype: GradientType = "float32",
    variation: Variation | None = None,
    **options: Any,
) -> PredictedJob:
    """A job that trains `model`, as `hvscale train` knows it, at a documented speed of one GPU.

    `images_per_second`: of one GPU that trains alone with `batch` images a step. `dtype`: what the
    gradients are sent as. `options`: of the model. Raises RequestError as `hvscale.models.build`
    does.
    """
    step_seconds = positive("batch", batch) / positive("images_per_second", images_per_second)
    side = find(model).side
    gradients = gradients_in_order(build_on_fake_tensors(model, **options), (1, 3, side, side))
    return documented_job(
        model,
        names=[one.name for one in gradients],
        sizes=[one.elements * ELEMENT_BYTES[dtype] for one in gradients],
        shares=[one.flops_share for one in gradients],
        step_seconds=step_seconds,
        dtype=dtype,
        images=batch,
        variation=variation,
    )


def documented_job(
    name: str,
    *,
    names: Sequence[str],
    sizes: Sequence[int],
    shares: Sequence[float],
    step_seconds: float,
    dtype: GradientType,
    images: float | None,
    variation: Variation | None,
) -> PredictedJob:
    """`shares`: of the step's time, until each gradient is ready."""
    seconds = step_seconds * (variation or Variation()).factors()
    ready = seconds[:, :, None] * np.array(shares)
    return PredictedJob(
        name=name,
        names=list(names),
        dtypes=[dtype] * len(names),
        groups=[None] * len(names),
        bytes=np.array(sizes, np.int64),
        ready=ready,
        after=seconds - ready.max(axis=2),
        images=images,
        recorded_np=1,
        settings={},
        recorded_seconds=seconds,
    )


def positive(what: str, value: float) -> float:
    """Return the value. Raises RequestError if it is not a positive, finite number."""
    if not np.isfinite(value) or value <= 0:
        raise RequestError(f"{what} is {value}; give a positive number")
    return value
