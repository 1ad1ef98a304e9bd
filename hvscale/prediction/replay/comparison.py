"""A replay beside its recording: steps, exposed communication and fused messages."""

from collections.abc import Iterable
from itertools import cycle, islice
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.line_files import read_lines
from hvscale.core.run_folder import DEFAULT_PLACEMENT, RunFolder, RunRecord
from hvscale.launch.environment import knob_prefixes
from hvscale.launch.options import LaunchOptions
from hvscale.prediction.replay.schedule import first_counted
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.gradients import JobGradients
from hvscale.profiling.analyze.grouping import Bins
from hvscale.profiling.analyze.messages import FUSION_OFF
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.profiling.read.events import Recording
from hvscale.profiling.read.gradients_file import GradientTensor

# Options of a start that choose no other way to communicate, or that `env` contains.
NOT_COMPARED = {"np", "run", "start_timeout", "env", "set", "settings", "sbatch", "submit", "sbatch_option"}
Sizes = NDArray[np.int64]
Compute = Literal["sleep", "spin"]
GPU_PADDING = 16  # bytes: BATCHED_D2D_PADDING of Horovod's common/ops/cuda/cuda_kernels.h


class ReplayedStep(BaseModel):
    """What only the steps.jsonl of a replay says of a step."""

    compute: Compute


class StepSummary(BaseModel):
    """The steps of rank 0 that count (in a recording without it: of its first recorded rank).

    `exposed_seconds`: inside synchronize(), the mean over steps. `messages`: fused messages per
    rank and step, None if unknown.
    """

    count: int
    mean_seconds: float
    median_seconds: float
    exposed_seconds: float
    messages: float | None = None


class FusedMessageRow(BaseModel):
    """Fused messages per rank and step with sizes in one bin, both limits inclusive."""

    bytes_min: int
    bytes_max: int | None
    recorded: float
    replayed: float


class ReplayDocument(VersionedDocument):
    """The document that `hvscale replay --json` prints (by alias).

    `steps`: all that were replayed; `recorded` and `replayed` are of those that count, as
    `first_counted` says. `compute`: what replaced computation; with `--compute auto`, what the
    replay chose. `differences`: between the two jobs, one phrase each; empty if the replay repeats
    the recorded job as it was. `sizes` is empty if a side's messages are unknown.
    """

    schema_: Literal["hvscale/replay/1"] = "hvscale/replay/1"
    recorded_run: str
    replayed_run: str
    np: int
    steps: int
    compute: Compute
    recorded: StepSummary
    replayed: StepSummary
    sizes: list[FusedMessageRow] = []
    differences: list[str] = []
    warnings: list[str] = []


class StepBytes(NamedTuple):
    """What a rank sends in a step: the bytes of its gradients, and those with padding.

    `use`: whether the step counts.
    """

    least: int
    most: int
    use: bool


class StepMessages(NamedTuple):
    """The sizes of the fused messages of so many steps, each counted once for each rank."""

    sizes: Sizes
    steps: int


def compare_replay(recorded: RunFolder, gradients: JobGradients, replayed: RunFolder, bins: Bins) -> ReplayDocument:
    """Compare a replay with the steps that it repeated.

    Raises RequestError if the replay has no steps.
    """
    log = read_step_log(replayed)
    if log is None:
        raise RequestError(f"{replayed.path} has no steps: the replay wrote no steps.jsonl")
    first = first_counted(len(log.seconds))
    numbers = list(islice(cycle(gradients.numbers), len(log.seconds)))[first:]
    steps = [gradients.ranks[0].steps[number] for number in numbers]
    before, after = recorded.read(), replayed.read()
    document = ReplayDocument(
        recorded_run=str(recorded.path),
        replayed_run=str(replayed.path),
        np=after.np,
        steps=len(log.seconds),
        compute=read_lines(replayed.steps, ReplayedStep.model_validate_json).values[-1].compute,
        recorded=_steps(np.array([step.seconds for step in steps]), np.array([step.blocked.sum() for step in steps])),
        replayed=_steps(log.seconds[first:], log.exposed_seconds[first:]),
        differences=differences(before, after, gradients),
    )
    least, most = tensor_bytes(gradients.tensors).sum(axis=1).tolist()
    all_steps = [StepBytes(least, most, number >= first) for number in range(len(log.seconds))]
    found = [
        recorded_messages(recorded, gradients, set(numbers), document.warnings),
        step_messages(replayed, dict.fromkeys(range(after.np), all_steps), document.warnings),
    ]
    for side, messages in zip((document.recorded, document.replayed), found, strict=True):
        side.messages = None if messages is None else len(messages.sizes) / messages.steps
    if found[0] is not None and found[1] is not None:
        document.sizes = _size_rows(found[0], found[1], bins)
    return document


def _steps(seconds: NDArray[np.float64], exposed: NDArray[np.float64]) -> StepSummary:
    return StepSummary(
        count=len(seconds),
        mean_seconds=float(seconds.mean()),
        median_seconds=float(np.median(seconds)),
        exposed_seconds=float(exposed.mean()),
    )


def recorded_messages(
    run: RunFolder, gradients: JobGradients, chosen: set[int], warnings: list[str]
) -> StepMessages | None:
    """The fused messages of the chosen steps of a recording; None, with a warning, if unknown."""
    if gradients.basis is not None:  # what stands for gradients is a recorded message
        return StepMessages(np.array([tensor.bytes for tensor in gradients.tensors], np.int64), 1)
    steps = {}
    for rank in gradients.ranks:
        exact, padded = tensor_bytes(rank.recording.tensors)
        steps[rank.recording.header.rank] = [
            StepBytes(int(exact[step.tensors].sum()), int(padded[step.tensors].sum()), step.number in chosen)
            for step in rank.recording.steps
        ]
    return step_messages(run, steps, warnings)


def tensor_bytes(tensors: Iterable[GradientTensor]) -> Sizes:
    """(2, tensors): the bytes of each tensor, and those with padding.

    Between GPUs, Horovod pads each tensor of a fused message to GPU_PADDING bytes.
    """
    sizes = [(tensor.bytes, 1 if tensor.device == "cpu" else GPU_PADDING) for tensor in tensors]
    return np.array([(size, -(-size // unit) * unit) for size, unit in sizes], np.int64).reshape(-1, 2).T


def step_messages(run: RunFolder, steps: dict[int, list[StepBytes]], warnings: list[str]) -> StepMessages | None:
    """The fused messages of a run's steps, by rank; None, with a warning, if they are unknown.

    No message has gradients of two steps, so the bytes that a rank has sent tell where a step ends.
    """
    try:
        recording = read_recording(run)
    except RequestError as error:
        warnings.append(f"fused messages are unknown: {error}")
        return None
    found = [messages_by_step(recording, rank, steps[rank]) for rank in recording.ranks if rank in steps]
    sizes = [one for of_rank in found for one in of_rank]
    if not sizes:
        why = "its oldest messages were overwritten: record it with a larger ring (--env HVPROF_MIB=N)"
        if not recording.overwritten:
            why = recording.incomplete or "its all-reduces do not add up to the gradients of its steps"
        warnings.append(f"{run.path}: fused messages are unknown: {why}")
        return None
    return StepMessages(np.concatenate(sizes), len(sizes))


def messages_by_step(recording: Recording, rank: int, steps: list[StepBytes]) -> list[Sizes]:
    """The message sizes of each step to use, but for steps whose end falls into a message."""
    if recording.overwritten or "allreduce" not in recording.events.operations:
        return []
    events = recording.events.of_rank(rank)
    # Horovod's ranks agree on what to send by bitwise all-reduces.
    data = (events.operation == events.operations.index("allreduce")) & ~events.bitwise
    sizes = events.bytes[data][np.argsort(events.start_ns[data], kind="stable")]
    sizes = sizes[sizes > 0]
    sent = np.concatenate([[0], np.cumsum(sizes)])
    found = []
    begin, is_exact = 0, True  # of the step: a position in `sent`
    least = most = sent[0]  # what was sent at its end
    for step in steps:
        least, most = least + step.least, most + step.most
        end = int(np.searchsorted(sent, most, side="right")) - 1
        was_exact, is_exact = is_exact, bool(sent[end] >= least)
        if is_exact:
            if was_exact and step.use:
                found.append(sizes[begin:end])
            begin, least, most = end, sent[end], sent[end]
    return found


def _size_rows(recorded: StepMessages, replayed: StepMessages, bins: Bins) -> list[FusedMessageRow]:
    calls = [np.bincount(bins.index(one.sizes), minlength=len(bins)) / one.steps for one in (recorded, replayed)]
    rows = []
    for index in np.flatnonzero(calls[0] + calls[1]).tolist():
        low, high = bins.limits(index)
        rows.append(
            FusedMessageRow(
                bytes_min=low, bytes_max=high, recorded=float(calls[0][index]), replayed=float(calls[1][index])
            )
        )
    return rows


def differences(recorded: RunRecord, replayed: RunRecord, gradients: JobGradients) -> list[str]:
    """How a replay's job differs from the recorded one, beyond its computation.

    A replay sets the variables that the recorded ranks had unless it is given others, and turns the
    fusion of recorded messages off.
    """
    pairs: list[tuple[str, object, object]] = [("np", recorded.np, replayed.np)]
    pairs += [("machine", recorded.host.name, replayed.host.name)]
    pairs += [("library", recorded.measured_library.name, replayed.measured_library.name)]
    names = sorted({*recorded.launch, *replayed.launch} - NOT_COMPARED - {"mpi"})
    defaults = {"placement": DEFAULT_PLACEMENT, "devices": LaunchOptions().devices}
    for name in names:
        old, new = (one.launch.get(name, defaults.get(name)) for one in (recorded, replayed))
        pairs.append((name.replace("_", " "), old, new))
    settings = gradients.ranks[0].recording.header.settings
    forced = FUSION_OFF if gradients.basis else {}
    before, after = {**recorded.env_asked, **settings}, {**settings, **replayed.env_asked, **forced}
    pairs += [
        (name, before.get(name), after.get(name))
        for name in sorted({*before, *after})
        if name.startswith(knob_prefixes()) and not name.startswith("HVPROF_")
    ]
    return [f"{name} {_value(old)} against {_value(new)}" for name, old, new in pairs if old != new]


def _value(value: object) -> str:
    return "not set" if value is None else str(value)
