"""What a job computes and sends in a step, as the model needs it."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.prediction.replay.schedule import first_step
from hvscale.profiling.analyze.gradients import JobGradients
from hvscale.profiling.analyze.messages import other_data_warnings, read_job_schedule
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.profiling.read.gradients_file import GradientStep

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class PredictedJob:
    """A data-parallel job. Its times are computation alone: waits are taken out.

    `names`, `dtypes`, `groups`: of each tensor, in the order of rank 0's first step; a group is
    None for a tensor on its own. `bytes`: (tensors,). `ready`: (ranks, steps, tensors), seconds
    from the step's start until the rank has computed the tensor. `after`: (ranks, steps), seconds
    from the last wait to the end of the step. `images`: of one rank in one step, None if unknown.
    """

    name: str
    names: list[str]
    dtypes: list[str]
    groups: list[str | None]
    bytes: NDArray[np.int64]
    ready: Seconds
    after: Seconds
    images: float | None
    recorded_np: int
    settings: dict[str, str]
    """Environment variables of Horovod that the recorded ranks had."""
    recorded_seconds: Seconds
    """(ranks, steps): the recorded steps, with their waits."""
    basis: str | None = None
    """What stands for the gradients if the run recorded none; its messages keep their pattern."""
    warnings: tuple[str, ...] = ()
    enqueued: Seconds | None = None
    """As `ready`, until the host enqueues the tensor, ahead of a GPU. None: when it is ready."""

    @property
    def compute_seconds(self) -> float:
        """A step without waiting: the mean over ranks and steps."""
        return float((self.ready.max(axis=2) + self.after).mean())

    def replayed(self, np_: int, count: int) -> "PredictedJob":
        """The computation of all ranks in the first `count` steps of a replay on `np_` ranks."""
        ranks, steps = self.after.shape
        first = np.array([first_step(rank, ranks, steps) for rank in range(np_)])
        step = (first[:, None] + np.arange(count)) % steps
        rank = (np.arange(np_) % ranks)[:, None]
        return replace(
            self,
            ready=self.ready[rank, step],
            after=self.after[rank, step],
            enqueued=None if self.enqueued is None else self.enqueued[rank, step],
            recorded_seconds=self.recorded_seconds[rank, step],
        )


def read_job(run: RunFolder) -> PredictedJob:
    """Read a recorded job: its gradients or, without any, its messages.

    Raises RequestError if the run has neither.
    """
    gradients = read_job_schedule(run).timed_on_gpu
    log = read_step_log(run)
    images = [] if log is None else log.images[log.images == log.images].tolist()
    ready, after = computation(gradients)
    enqueued = None
    if gradients.on_gpu is not None:
        on_host, _ = computation_on_host(gradients)
        # The host and the GPU are at the same point when the last wait ends. A host that is behind
        # keeps the GPU waiting, so that the tensor is ready when it is enqueued.
        ahead = after_last_wait(gradients) - after
        enqueued = np.minimum(on_host + np.roll(ahead, 1, axis=1)[:, :, None], ready)
    return PredictedJob(
        name=run.path.name,
        names=[tensor.name for tensor in gradients.tensors],
        dtypes=[tensor.dtype for tensor in gradients.tensors],
        groups=[tensor.group for tensor in gradients.tensors],
        bytes=np.array([tensor.bytes for tensor in gradients.tensors], np.int64),
        ready=ready,
        after=after,
        images=float(np.median(images)) / gradients.size if images else None,
        recorded_np=gradients.size,
        settings=dict(gradients.ranks[0].recording.header.settings),
        recorded_seconds=gradients.seconds,
        basis=gradients.basis,
        warnings=(*gradients.warnings, *other_data_warnings(run, gradients)),
        enqueued=enqueued,
    )


def computation(gradients: JobGradients) -> tuple[Seconds, Seconds]:
    """`ready` and `after` of a job: by the GPU's times where they are known, else by the host's."""
    return computation_on_host(gradients) if gradients.on_gpu is None else gradients.on_gpu


def after_last_wait(gradients: JobGradients) -> Seconds:
    """(ranks, steps): from the end of the last wait to the step's end, on the host."""

    def of_step(step: GradientStep) -> float:
        return step.seconds - float(step.ends.max(initial=0.0))

    return np.array([[of_step(rank.steps[number]) for number in gradients.numbers] for rank in gradients.ranks])


def computation_on_host(gradients: JobGradients) -> tuple[Seconds, Seconds]:
    """When the host enqueued each tensor and what followed the last wait, less the waits before.

    Raises RequestError for a time that is not a number.
    """
    ready, after = gradients.enqueued.copy(), gradients.seconds - gradients.blocked
    for row, rank in enumerate(gradients.ranks):
        for column, number in enumerate(gradients.numbers):
            step = rank.steps[number]
            moments = ready[row, column]
            for begin, blocked in zip(step.begins.tolist(), step.blocked.tolist(), strict=True):
                moments[gradients.enqueued[row, column] >= begin + blocked] -= blocked
    after = np.maximum(after - ready.max(axis=2), 0.0)
    if not np.isfinite(ready).all():
        raise RequestError("the recording contains a time that is not a number")
    return ready, after
