"""What `hvscale tune` prints: progress, tables, the verdict; and the rows of its CSV file."""

from pydantic import BaseModel
from rich.progress import MofNCompleteColumn
from rich.table import Table

from hvscale.comm_tuning.tune.document import Trial, TrialState, TuneDocument
from hvscale.comm_tuning.tune.job_space import JobSettings
from hvscale.comm_tuning.tune.scores import ratios
from hvscale.comm_tuning.tune.study import TuneStudy
from hvscale.core.plain_rich import PlainColumn
from hvscale.core.statistics import Estimate, percent
from hvscale.core.units import human_interval, human_number
from hvscale.report.progress import ProgressBar
from hvscale.report.tables import plain_table

BEST_SHOWN = 10


class TrialRow(BaseModel):
    """One line of the CSV file.

    `ratio`: to the last trial of the defaults before it, 0 if it failed.
    """

    number: int
    settings: str
    state: TrialState
    throughput: float | None
    throughput_low: float | None
    throughput_high: float | None
    ratio: float
    steps: int
    seconds: float
    start: int
    run: str
    problem: str | None


def trial_rows(document: TuneDocument) -> list[TrialRow]:
    rows = []
    for trial, ratio in zip(document.trials, ratios(document.trials), strict=True):
        found = trial.throughput
        rows.append(
            TrialRow(
                number=trial.number,
                settings=settings_text(trial.settings),
                state=trial.state,
                throughput=found.mean if found else None,
                throughput_low=found.low if found else None,
                throughput_high=found.high if found else None,
                ratio=ratio,
                steps=trial.steps,
                seconds=trial.seconds,
                start=trial.start,
                run=trial.run,
                problem=trial.problem,
            )
        )
    return rows


def settings_text(settings: JobSettings) -> str:
    return " ".join(f"{knob}={value}" for knob, value in settings.items()) or "the defaults"


def trials_table(document: TuneDocument) -> Table:
    """The best trials and the defaults, fastest first; then the failed trials."""
    rows = trial_rows(document)
    fine = sorted((row for row in rows if row.state == "measured"), key=lambda row: -row.ratio)
    failed = [row for row in rows if row.state not in ("measured", "stopped early")]
    early = len(rows) - len(fine) - len(failed)
    shown = fine[:BEST_SHOWN]
    shown += [row for row in fine[BEST_SHOWN:] if row.number == 0]
    left_out = len(fine) - len(shown)
    notes = [f"measured by {document.measured_by}" if document.measured_by else ""]
    if early or left_out:
        notes.append(f"not shown: {left_out} slower trials, {early} stopped early")
    result = plain_table(
        f"np {document.np}, {len(rows)} trials",
        "\n".join(note for note in notes if note),
        "trial",
        "settings",
        document.unit or "throughput",
        "interval",
        "gain",
    )
    with_text_column(result)
    for row in shown:
        gain = percent(row.ratio) if document.trials[row.number].settings else ""
        interval = human_interval(row.throughput_low, row.throughput_high, 4)
        result.add_row(str(row.number), row.settings, human_number(row.throughput, 4), interval, gain)
    for row in failed:
        result.add_row(str(row.number), row.settings, row.state, "", "")
    return result


def space_table(document: TuneDocument) -> Table:
    """Every knob, with the values that were searched or the reason why none was."""
    result = with_text_column(plain_table("knobs", None, "knob", "values searched, or why not"))
    for choice in sorted(document.space, key=lambda one: not one.values):
        result.add_row(choice.knob, " ".join(choice.values) if choice.values else f"- {choice.reason}")
    return result


def with_text_column(table: Table) -> Table:
    """Left-align and wrap the second column, which is text."""
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    return table


def verdict(document: TuneDocument) -> str:
    """The answer, in one line."""
    proof = document.proof
    if document.winner is None:
        return "no proof yet: run the same command with the same --run to resume"
    if proof is None:
        return "keep the defaults: no trial was faster"
    if proof.settings in document.failed_in_proof:
        return f"keep the defaults: {settings_text(proof.settings)} failed in the proof"
    found = f"{gain_text(proof.gain)} over {len(proof.pairs)} pairs of fresh starts"
    if document.winner:
        return f"use {settings_text(document.winner)}: {found}"
    why = "so they are slower" if proof.gain.high is not None and proof.gain.high < 1 else "which may be chance"
    return f"keep the defaults: {settings_text(proof.settings)} gave {found}, {why}"


def gain_text(gain: Estimate) -> str:
    if gain.low is None or gain.high is None:
        return percent(gain.mean)
    return f"{percent(gain.mean)} ({percent(gain.low)} to {percent(gain.high)})"


class TuneProgressBar(ProgressBar):
    """A line for each trial, and a bar over all trials with the best gain so far."""

    def __init__(self, study: TuneStudy) -> None:
        super().__init__(study.request.trials, MofNCompleteColumn(), PlainColumn("{task.fields[best]}"), best="")
        self.study, self.best = study, 1.0

    def trial_begins(self, settings: JobSettings) -> None:
        self.update(description=f"trying {settings_text(settings)}")

    def trial_ended(self, trial: Trial, ratio: float) -> None:
        if trial.state == "measured":
            self.best = max(self.best, ratio)
        self.update(advance=1, best=f"best {percent(self.best)}")
        found = trial.throughput
        if trial.state in ("measured", "stopped early") and found is not None:
            gain = f", {percent(ratio)}" if trial.settings else ""
            figure = f"{human_number(found.mean, 4)} {self.study.document.unit or ''}".rstrip() + gain
            figure += f" ({trial.state})" * (trial.state != "measured")
        else:
            figure = f"{trial.state}: {trial.problem}"
        self.print(f"trial {trial.number}: {settings_text(trial.settings)}: {figure}")

    def pair_begins(self, settings: JobSettings, number: int, pairs: int) -> None:
        if number == 1:
            self.print(
                f"proof: {settings_text(settings)} against the defaults, {pairs} interleaved pairs of fresh starts"
            )
        self.update(description=f"proof, pair {number}", total=pairs, completed=number - 1)
