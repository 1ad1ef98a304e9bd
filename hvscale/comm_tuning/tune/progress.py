"""What is shown on stderr while a tuning study runs."""

from rich.progress import MofNCompleteColumn

from hvscale.comm_tuning.tune.document import Trial
from hvscale.comm_tuning.tune.job_space import JobSettings
from hvscale.comm_tuning.tune.study import TuneStudy
from hvscale.comm_tuning.tune.tables import percent, settings_text
from hvscale.core.plain_rich import PlainColumn
from hvscale.core.units import human_number
from hvscale.report.progress import ProgressBar


class TuneProgressBar(ProgressBar):
    """A line for each trial, and a bar over all of them with the best gain so far."""

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
