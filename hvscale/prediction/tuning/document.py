"""The document of `tune --predict-np`, and its table."""

from typing import Literal

import numpy as np
from pydantic import BaseModel

from hvscale.core.statistics import Estimate, as_columns, estimate, percent, ratio
from hvscale.core.units import human_interval, human_number, signed_percent, signed_percent_interval
from hvscale.prediction.document import CONFIDENCE
from hvscale.prediction.tuning.search import SearchPoint
from hvscale.report.tables import TableModel
from hvscale.studies.comparison.study import ComparisonDocument, MeasuredBy

RECORDED = "recorded"  # the name of the settings of the recording
MIN_GAIN = 1.01  # below it, a gain that is only predicted is no reason to change settings


class PredictedCandidate(BaseModel):
    """What the model says about settings.

    `settings`: as for --set. `step`: on the requested np. `step_in_proof`: on the np of the
    replays. `gain`: the recorded settings' step over this one, on the requested np; None for those.
    """

    settings: dict[str, str]
    step: Estimate
    step_in_proof: Estimate
    gain: Estimate | None = None


class CandidateRow(BaseModel):
    """A candidate. Gains: the recorded settings' step over this one's; None for those.

    `predicted_...`: on `predict_np` ranks, with intervals of `predicted_confidence`.
    `predicted_in_proof_...`: on the np of the replays. `replayed_...`: measured there, with
    intervals of `confidence` over fresh starts. `model_error_percent`: of the predicted step on the
    np of the replays.
    """

    name: str
    settings: dict[str, str]
    predicted_step_seconds: float
    predicted_step_seconds_low: float | None
    predicted_step_seconds_high: float | None
    predicted_gain: float | None
    predicted_gain_low: float | None
    predicted_gain_high: float | None
    predicted_in_proof_step_seconds: float
    predicted_in_proof_step_seconds_low: float | None
    predicted_in_proof_step_seconds_high: float | None
    replayed_runs: int
    replayed_step_seconds: float | None
    replayed_step_seconds_low: float | None
    replayed_step_seconds_high: float | None
    replayed_gain: float | None
    replayed_gain_low: float | None
    replayed_gain_high: float | None
    model_error_percent: float | None
    verdict: str
    """What the replays show: faster, slower, no difference, unknown; empty for the baseline."""


class PredictedTune(ComparisonDocument):
    """predicted-tune.json, which `hvscale tune --predict-np N --json` prints.

    `np`: ranks of the replays. `recording`, `profiled_runs`: run folders. `points`: the search,
    best first. `choice`: the name of the row to use, None while undecided; `settings`: its
    settings. `verdict`: what is proven and what is predicted; while undecided, of the rounds so
    far, None before two have ended.
    """

    schema_: Literal["hvscale/predicted-tune/1"] = "hvscale/predicted-tune/1"
    measured_by: MeasuredBy | None = "seconds"
    unit: str | None = "s"
    predict_np: int
    recording: str
    profiled_runs: list[str]
    measured_np: list[int]
    predicted_confidence: float = CONFIDENCE
    points: list[SearchPoint]
    candidates: dict[str, PredictedCandidate]
    rows: list[CandidateRow] = []
    choice: str | None = None
    settings: dict[str, str] | None = None
    verdict: str | None = None

    def tabulate(self) -> None:
        self.rows = [self.row(name, candidate) for name, candidate in self.candidates.items()]

    def row(self, name: str, candidate: PredictedCandidate) -> CandidateRow:
        seconds = self.measured(name, "seconds")
        replayed = estimate(list(seconds.values())) if seconds else None
        gain = ratio(self.measured(self.baseline, "seconds"), seconds) if name != self.baseline else None
        error = 100 * (candidate.step_in_proof.mean / replayed.mean - 1) if replayed is not None else None
        is_unmeasured = name != self.baseline and gain is None
        return CandidateRow(
            name=name,
            settings=candidate.settings,
            **as_columns("predicted_step_seconds", candidate.step),
            **as_columns("predicted_gain", candidate.gain),
            **as_columns("predicted_in_proof_step_seconds", candidate.step_in_proof),
            replayed_runs=len(seconds),
            **as_columns("replayed_step_seconds", replayed),
            **as_columns("replayed_gain", gain),
            model_error_percent=error,
            verdict="unknown" if is_unmeasured else gain.verdict("faster", "slower") if gain is not None else "",
        )

    def decide(self, rounds: int) -> None:
        """Say what is proven and what is predicted after so many whole rounds; after the last,
        choose a row.
        """
        row = self.chosen()
        self.choice, self.settings, self.verdict = None, None, None
        if rounds >= self.repeats:
            self.choice, self.settings, self.verdict = row.name, row.settings, verdict(self, row)
        elif rounds > 1:  # one alone has no interval
            self.verdict = f"so far, after {rounds} of {self.repeats} rounds: {verdict(self, row)}"

    def chosen(self) -> CandidateRow:
        """The row to use.

        Of the candidates that are proven faster, the fastest in the replays. Else, for more ranks
        than were replayed, the one with the largest predicted gain, unless it is proven slower or
        the gain may be below 1 %. Else the recorded settings.
        """
        baseline, *others = self.rows
        proven = [row for row in others if row.verdict == "faster"]
        if proven:
            return min(proven, key=lambda row: row.replayed_step_seconds or np.inf)
        predicted = [
            row for row in others if row.verdict == "no difference" and (row.predicted_gain_low or 0) > MIN_GAIN
        ]
        if predicted and self.predict_np > self.np:
            return max(predicted, key=lambda row: row.predicted_gain or 0)
        return baseline


def verdict(document: PredictedTune, row: CandidateRow) -> str:
    """What is proven by replay, and what is only predicted."""
    np_, predict_np = document.np, document.predict_np
    if row.name == document.baseline:
        text = f"keep the recorded settings: no other settings are proven faster by replay at np {np_}"
        return text + (
            f", and those that are not slower have no clear predicted gain at np {predict_np}" * (predict_np > np_)
        )
    settings = " ".join(f"{knob}={text}" for knob, text in row.settings.items())
    replayed = gain_text(row.replayed_gain, row.replayed_gain_low, row.replayed_gain_high)
    predicted = gain_text(row.predicted_gain, row.predicted_gain_low, row.predicted_gain_high)
    starts = f"{row.replayed_runs} interleaved replays at np {np_}"
    proof = f"proven by {starts}: {replayed}" if row.verdict == "faster" else f"{starts} show no difference: {replayed}"
    return f"use {settings}: {proof}. Predicted for np {predict_np}, not proven: {predicted}"


def gain_text(gain: float | None, low: float | None, high: float | None) -> str:
    if gain is None:
        return "unknown"
    bounds = f" ({percent(low)} to {percent(high)})" if low is not None and high is not None else ""
    return f"{percent(gain)} steps per second{bounds}"


def proof_table(document: PredictedTune) -> TableModel:
    """Rows of the candidates in three groups: predicted on both numbers of ranks, and replayed."""
    np_, predict_np = document.np, document.predict_np
    groups: dict[str, list[list[str]]] = {f"predicted, np {predict_np}": [], f"predicted, np {np_}": []}
    groups[f"replayed, np {np_}"] = replayed = []
    for row in document.rows:
        groups[f"predicted, np {predict_np}"].append(
            [
                row.name,
                *step_cells(
                    row.predicted_step_seconds, row.predicted_step_seconds_low, row.predicted_step_seconds_high
                ),
                *gain_cells(row.predicted_gain, row.predicted_gain_low, row.predicted_gain_high),
                "",
            ]
        )
        if np_ != predict_np:
            in_proof = step_cells(row.predicted_in_proof_step_seconds, None, None)
            groups[f"predicted, np {np_}"].append([row.name, *in_proof, "", "", ""])
        replayed.append(
            [
                row.name,
                *step_cells(row.replayed_step_seconds, row.replayed_step_seconds_low, row.replayed_step_seconds_high),
                *gain_cells(row.replayed_gain, row.replayed_gain_low, row.replayed_gain_high),
                proof_cell(row),
            ]
        )
    settings = [
        f"{name}: {' '.join(f'{knob}={text}' for knob, text in candidate.settings.items())}"
        for name, candidate in document.candidates.items()
    ]
    predicted_level, replayed_level = f"{document.predicted_confidence:.0%}", f"{document.confidence:.0%}"
    return TableModel(
        title=f"predicted for np {predict_np}, proven by replay at np {np_}",
        columns=["settings", "s a step", "interval", "gain %", "interval", ""],
        groups=groups,
        caption=[
            *settings,
            f"{len(document.points)} settings searched in the model, with costs measured at np "
            f"{', '.join(map(str, document.measured_np))}",
            "gain: steps per second over the recorded settings'",
            f"intervals: {predicted_level} predicted, {replayed_level} replayed over fresh starts",
        ],
    )


def step_cells(value: float | None, low: float | None, high: float | None) -> list[str]:
    return [human_number(value, 4), human_interval(low, high) if low is not None else ""]


def gain_cells(gain: float | None, low: float | None, high: float | None) -> list[str]:
    if gain is None:
        return ["", ""]
    bounds = [None if end is None else 100 * (end - 1) for end in (low, high)]
    return [signed_percent(100 * (gain - 1)), signed_percent_interval(*bounds)]


def proof_cell(row: CandidateRow) -> str:
    words = {"faster": "proven faster", "slower": "proven slower", "unknown": "not proven"}
    return words.get(row.verdict, row.verdict)
