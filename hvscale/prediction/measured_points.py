"""The points of a scaling study, as rows beside a prediction."""

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvscale.core.documents import from_json, other_version
from hvscale.core.errors import RequestError
from hvscale.core.files import read_text
from hvscale.core.run_folder import RunFolder, is_own_command
from hvscale.core.statistics import Estimate, as_columns, estimate
from hvscale.prediction.document import CONFIDENCE, PredictedRow, PredictionDocument
from hvscale.prediction.explained import explained_by_communication
from hvscale.prediction.model.samples import is_same_folder, recording, replayed_folder
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.studies.scaling.document import ScalingDocument, ScalingRun
from hvscale.studies.throughput import WARMUP_STEPS

FILE = "scale.json"
IMAGES_UNIT = "images/s"
PRIORITY = {"measured": 0, "replayed": 1, "predicted": 2, "documented": 2}
SAME_WORK = 0.01  # relative difference of images in a step


@dataclass(frozen=True)
class StepMeans:
    """Means over the steps of one run, in seconds. `exposed`: None if the run did not log it."""

    seconds: float
    exposed: float | None


def add_measured_rows(document: PredictionDocument, folder: Path, recorded: RunFolder) -> None:
    """Put a row for each np of a scaling study into a prediction, and add its warnings.

    `recorded`: the run that was predicted from. A measured row takes the place of a replayed or
    predicted one. Raises as `read_study` and `rows_of`.
    """
    study = read_study(folder)
    rows = rows_of(study, folder, document.compute_seconds)
    document.warnings += warnings_of(study, folder, rows, document, recorded)
    document.explained = explanation(rows, [*document.rows, *document.predicted_beside])
    by_np = {row.np: row for row in document.rows}
    for row in rows:
        known = by_np.get(row.np)
        if known is not None and PRIORITY[known.source] <= PRIORITY[row.source]:
            continue
        if known is not None and known.source in ("predicted", "documented"):
            document.predicted_beside.append(known)
        parts = {} if known is None else {"loss": known.loss, "messages": known.messages}
        by_np[row.np] = row.model_copy(update=parts)
    document.rows = [by_np[np_] for np_ in sorted(by_np)]


def explanation(measured: list[PredictedRow], predicted: list[PredictedRow]) -> str | None:
    """Whether the predicted communication explains the measured curve.

    None if images are unknown, or fewer than two np were both measured and predicted.
    """
    known = {row.np: row for row in predicted if row.source in ("predicted", "documented")}
    curve = {row.np: row.images_per_second for row in measured if row.np in known}
    images = {np_: value for np_, value in curve.items() if value is not None}
    return explained_by_communication(images, list(known.values())).sentence if len(images) > 1 else None


def read_study(folder: Path) -> ScalingDocument:
    """The document in a study's folder. Raises RequestError if there is none that can be used."""
    file, text = folder / FILE, ""
    try:
        text = read_text(file)
        study = from_json(ScalingDocument, text)
    except FileNotFoundError as error:
        raise RequestError(f"{folder} holds no {FILE}: give the folder of a study made with `hvscale scale`") from error
    except (OSError, ValueError) as error:
        if writer := other_version(ScalingDocument, text):
            raise RequestError(f"{folder} was written by {writer}: measure again with hvscale scale") from error
        what = error.strerror if isinstance(error, OSError) else "it is damaged, or not a study's"
        raise RequestError(f"{file} cannot be read: {what}") from error
    if study.scaling == "strong":
        raise RequestError(
            f"{folder} is of strong scaling, and a prediction keeps each rank's work: measure with --weak"
        )
    if not throughputs(study):
        raise RequestError(f"{folder} holds no finished run: give its `hvscale scale` command again to complete it")
    return study


def rows_of(study: ScalingDocument, folder: Path, compute_seconds: float) -> list[PredictedRow]:
    """A row for each np of the scaling study in `folder`: replayed if it scaled `hvscale replay`.

    `compute_seconds`: the step of a rank alone, which speed-up and efficiency compare with.
    Intervals are over fresh starts; None for a single start. Raises RequestError if the study does
    not record the time of a step.
    """
    by_np: dict[int, list[tuple[float, StepMeans]]] = {}
    measured = throughputs(study)
    for (run, throughput), steps in zip(measured, steps_of(measured, folder, compute_seconds), strict=True):
        by_np.setdefault(run.np, []).append((throughput, steps))
    return [row_of(study, np_, runs, compute_seconds) for np_, runs in sorted(by_np.items())]


def throughputs(study: ScalingDocument) -> list[tuple[ScalingRun, float]]:
    """The runs that count, with their throughputs."""
    return [
        (run, run.throughput)
        for run in study.runs
        if run.throughput is not None and 0 < run.throughput < math.inf and run.np > 0
    ]


def row_of(
    study: ScalingDocument, np_: int, runs: list[tuple[float, StepMeans]], compute_seconds: float
) -> PredictedRow:
    step = estimate([steps.seconds for _, steps in runs], CONFIDENCE)
    efficiency = inverse(step).times(compute_seconds)
    images = estimate([throughput for throughput, _ in runs], CONFIDENCE) if study.unit == IMAGES_UNIT else None
    exposed = [steps.exposed for _, steps in runs if steps.exposed is not None]
    return PredictedRow(
        np=np_,
        source="replayed" if is_own_command(study.command, "replay") else "measured",
        **as_columns("step_seconds", step),
        speed_up=np_ * efficiency.mean,
        **as_columns("scaling_efficiency", efficiency),
        exposed_seconds=float(np.mean(exposed)) if exposed else max(0.0, step.mean - compute_seconds),
        **as_columns("images_per_second", images),
    )


def inverse(found: Estimate) -> Estimate:
    return Estimate(
        mean=1 / found.mean,
        low=None if found.high is None else 1 / found.high,
        high=None if found.low is None else 1 / found.low,
    )


def steps_of(measured: list[tuple[ScalingRun, float]], folder: Path, compute_seconds: float) -> list[StepMeans]:
    """The steps of each run: from steps.jsonl, or from the throughput over that of one rank."""
    logged = [logged_steps(RunFolder(folder / run.folder)) for run, _ in measured]
    known = [steps for steps in logged if steps is not None]
    if len(known) == len(measured):
        return known
    alone = [throughput for run, throughput in measured if run.np == 1]
    if not alone:
        raise RequestError(
            f"{folder} does not record the time of a step: its runs wrote no steps.jsonl, and np 1 was not measured. "
            "Measure again with np 1 among --np"
        )
    base = estimate(alone).mean
    return [StepMeans(compute_seconds * run.np * base / throughput, None) for run, throughput in measured]


def logged_steps(run: RunFolder) -> StepMeans | None:
    """Means over the steps of steps.jsonl after the first ones; None if the run has none."""
    log = read_step_log(run)
    if log is None or not len(log.seconds):
        return None
    first = WARMUP_STEPS if len(log.seconds) > WARMUP_STEPS else 0
    exposed = log.exposed_seconds[first:]
    known = exposed[np.isfinite(exposed)]
    return StepMeans(float(log.seconds[first:].mean()), float(known.mean()) if len(known) else None)


def warnings_of(
    study: ScalingDocument,
    folder: Path,
    rows: list[PredictedRow],
    document: PredictionDocument,
    recorded: RunFolder,
) -> list[str]:
    """What makes the points and the prediction hard to compare."""
    found = []
    is_replay = is_own_command(study.command, "replay")
    if is_replay and not is_same_folder(replayed := recording_of(study, folder), recording(recorded)):
        found.append(f"{folder} replays another recording, {replayed}, than {recording(recorded)}")
    own = images_of_a_rank(rows)
    predicted = images_of_a_rank(document.rows)
    if None in (own, predicted) and not is_replay and recorded.read().command != study.command:
        found.append(
            f"{folder} measured another command than the recorded job's, and its images a rank and step are unknown: its "
            "points may belong to another job"
        )
    if own is not None and predicted is not None and abs(own / predicted - 1) > SAME_WORK:
        found.append(
            f"{folder} has {own:.4g} images a rank and step, the recorded job {predicted:.4g}: "
            "its points belong to another job"
        )
    return found


def recording_of(study: ScalingDocument, folder: Path) -> Path:
    """The recording that a study of `hvscale replay` repeats.

    Its runs know from which folder a relative path starts. Without them only its name is certain.
    """
    for run, _ in throughputs(study):
        with suppress(RequestError):
            return recording(RunFolder(folder / run.folder))
    return replayed_folder(study.command, str(folder))


def images_of_a_rank(rows: list[PredictedRow]) -> float | None:
    """Images of one rank in a step, of the first row that knows them."""
    known = (row.images_per_second * row.step_seconds / row.np for row in rows if row.images_per_second is not None)
    return next(known, None)
