"""How much slower a job computes while its messages move.

Messages take cores, memory bandwidth or, with NCCL, multiprocessors of the GPU from the computation
that hides them. Several runs of a job show how much: a rank alone computes without messages, and
with other links, settings or numbers of ranks they move during another part of the computation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.prediction.model.costs import Costs, HorovodSettings
from hvscale.prediction.model.horovod_loop import simulate
from hvscale.prediction.model.job import PredictedJob, computation
from hvscale.prediction.model.samples import crowding, run_samples
from hvscale.profiling.analyze.gradients import read_job_gradients
from hvscale.profiling.analyze.steps import read_step_log

# Steps of two starts with the same settings differ by as much, which shows no slow-down.
MIN_DIFFERENCE = 0.04
MAX_LOST_SPEED = 0.9
LEAST_BACKWARD = 0.1  # of the recorded time from a step's first gradient to its last
CHAINS, STEPS, ROUNDS = 16, 12, 3


@dataclass(frozen=True)
class RecordedComputing:
    """A mean step of a recorded job: seconds of computing, and of messages that it hides."""

    computing: float
    hidden: float


class Computing:
    """What the ranks of a job compute.

    `recorded`: with the messages that moved meanwhile. `alone`: without any. `lost_speed`: what
    share of its speed a computation loses while a message moves. It is None where the recordings do
    not show it, and then the job computes as recorded.
    """

    def __init__(self, recorded: PredictedJob, lost_speed: float | None = None, hidden_seconds: float = 0.0) -> None:
        """`hidden_seconds`: of messages that a recorded step hides."""
        self.recorded, self.lost_speed = recorded, lost_speed
        self.alone = stretched(recorded, -(lost_speed or 0.0) * hidden_seconds)

    def at(self, horovod: HorovodSettings, costs: Costs, np_: int) -> PredictedJob:
        """The job on so many ranks, slowed by its messages.

        A slower job hides more of them, so a few rounds are simulated.
        """
        job = self.alone
        for _ in range(ROUNDS if self.lost_speed and np_ > 1 else 0):
            hidden = float(simulate(job, horovod, costs, np_, chains=CHAINS, steps=STEPS).hidden.mean())
            job = stretched(self.alone, (self.lost_speed or 0.0) * hidden)
        return job


def stretched(job: PredictedJob, seconds: float) -> PredictedJob:
    """The job with so much more time between a step's first gradient and its last, on average.

    Messages move only in between: the forward pass before it is as long as ever.
    """
    first = job.ready.min(axis=2, keepdims=True)
    backward = float((job.ready.max(axis=2) - first[:, :, 0]).mean())
    if not seconds or not backward:
        return job
    factor = max(1 + seconds / backward, LEAST_BACKWARD)
    ready = first + (job.ready - first) * factor
    return replace(job, ready=ready, enqueued=None if job.enqueued is None else np.minimum(job.enqueued, ready))


def measured_computing(job: PredictedJob, recorded: RunFolder, others: Sequence[RunFolder]) -> Computing:
    """The computing of `job`, which was read from `recorded`.

    `others`: further runs. Those of the same command, with as many ranks per core, show how
    messages slow it down if they had one rank or recorded the same gradients. Replays do not,
    because they only sleep.
    """
    found = [one for run in others if (one := alone(recorded, run) or same_job(job, recorded, run)) is not None]
    # Reading the recording's messages again takes as long as the rest of a prediction.
    own = recorded_computing(recorded) if found else None
    return Computing(job) if own is None else Computing(job, lost_speed([own, *found]), own.hidden)


def alone(recorded: RunFolder, other: RunFolder) -> RecordedComputing | None:
    """The mean step of the job on one rank, without the first; None if it is another run."""
    log = read_step_log(other)
    if other.read().np != 1 or log is None or why_unused(recorded, other) is not None:
        return None
    return RecordedComputing(float(log.seconds[1:].mean()), 0.0)


def why_unused(recorded: RunFolder, other: RunFolder) -> str | None:
    """Why a run does not show how messages slow the recorded job, in words.

    None if it may, and for several ranks without gradients, which are not expected to.
    """
    record, job = other.read(), recorded.read()
    if record.np > 1 and not any(other.hvprof.glob("gradients-*.hvg")):
        return None
    ranks = "one rank" if record.np == 1 else f"{record.np} ranks"
    if record.command != job.command:
        return f"{ranks} with another command than the recorded job: not used"
    if crowding(record) != crowding(job):
        return (
            f"{ranks} at {crowding(record):g} per core, the recorded job at {crowding(job):g}: it does not show how "
            "messages slow computing"
        )
    log = read_step_log(other)
    if record.np == 1 and (log is None or len(log.seconds) < 2):
        return "one rank whose steps are unknown: not used. Train with `hvscale train`, or write steps.jsonl"
    return None


def same_job(job: PredictedJob, recorded: RunFolder, other: RunFolder) -> RecordedComputing | None:
    """The mean step of a further recording of the job; None if it is another run."""
    if not any(other.hvprof.glob("gradients-*.hvg")) or why_unused(recorded, other) is not None:
        return None
    try:
        tensors = {(one.name, one.bytes) for one in read_job_gradients(other).tensors}
    except RequestError:
        return None
    own = set(zip(job.names, job.bytes.tolist(), strict=True))
    return recorded_computing(other) if tensors == own else None


def recorded_computing(run: RunFolder) -> RecordedComputing | None:
    """The mean step of a run that recorded gradients and messages; None without either."""
    try:
        gradients, samples = read_job_gradients(run).timed_on_gpu, run_samples(run)
    except RequestError:
        return None
    if samples is None:
        return None
    ready, after = computation(gradients)
    steps = samples.total_steps or max(len(one.recording.steps) for one in gradients.ranks)
    messages = samples.total_seconds / steps
    # The rank that computes longest waits for messages only.
    exposed = float(gradients.blocked.min(axis=0).mean())
    return RecordedComputing(float((ready.max(axis=2) + after).mean()), max(0.0, messages - exposed))


def lost_speed(recordings: Sequence[RecordedComputing]) -> float | None:
    """The slope of computing over hidden messages; None if too little differs to show it.

    0 where the difference between the ends of the line is within that of two starts.
    """
    hidden = np.array([one.hidden for one in recordings])
    computing = np.array([one.computing for one in recordings])
    difference = MIN_DIFFERENCE * float(computing.mean())
    if len(recordings) < 2 or float(np.ptp(hidden)) <= difference:
        return None
    slope = float(np.polyfit(hidden, computing, 1)[0])
    if slope * float(np.ptp(hidden)) <= difference:
        return 0.0
    return min(slope, MAX_LOST_SPEED)
