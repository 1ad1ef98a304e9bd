"""The request of `hvscale tune`, checked before anything starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hvscale.comm_tuning.knobs.settings import with_settings
from hvscale.comm_tuning.tune.document import TuneDocument
from hvscale.comm_tuning.tune.job_space import JobSettings, check_names, fixed_settings
from hvscale.comm_tuning.tune.plan import TrialLimits
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import default_run_path
from hvscale.launch.options import LaunchOptions
from hvscale.studies.throughput import Metric

MIN_PAIRS = 7  # fewer give too wide an interval
TRIALS = 40  # by default, without --trials and --minutes


@dataclass(frozen=True)
class TuneRequest:
    """The options of a search.

    `options`: of every launch. `knobs`: search only these; None for all that can help. `fixed`:
    settings of every trial. `trials`, `minutes`: None for no limit.
    """

    command: list[str]
    options: LaunchOptions
    knobs: list[str] | None
    fixed: dict[str, str]
    metric: Metric | None
    trials: int | None
    minutes: float | None
    pairs: int
    limits: TrialLimits

    @classmethod
    def of(
        cls,
        command: list[str],
        *,
        trials: int | None,
        minutes: float | None,
        pairs: int,
        knobs: list[str] | None,
        fix: list[str],
        metric: str | None,
        first_step_timeout: float,
        trial_seconds: float,
        options: LaunchOptions,
    ) -> Self:
        """Check the options of the command line. Raises RequestError; starts and writes nothing."""
        if options.np < 2:
            raise RequestError(f"-np {options.np}: a single rank sends no messages; use -np 2 or more")
        if pairs < MIN_PAIRS:
            raise RequestError(f"--pairs {pairs}: a proof needs at least {MIN_PAIRS} pairs")
        check_names(knobs)
        fixed = fixed_settings(fix)
        if both := sorted(fixed.keys() & {*(knobs or ())}):
            raise RequestError(f"{both[0]} is in --knobs and --fix: leave it out of --fix to search it")
        request = cls(
            command=command,
            options=options,
            knobs=knobs,
            fixed=fixed,
            metric=Metric.parse(metric) if metric is not None else None,
            trials=TRIALS if trials is None and minutes is None else trials,
            minutes=minutes,
            pairs=pairs,
            limits=TrialLimits(first_step=first_step_timeout, stall=first_step_timeout, trial=trial_seconds),
        )
        request.options_with({})  # an invalid --fix is refused before anything starts
        return request

    @property
    def np(self) -> int:
        return self.options.np

    def options_with(self, settings: JobSettings) -> LaunchOptions:
        """The launch options with the fixed settings and these.

        Raises RequestError if the job's libraries do not support them.
        """
        return with_settings(set_options({**self.fixed, **settings}), self.command, self.options, option="--fix")

    def new_document(self, folder: Path | None) -> TuneDocument:
        """The document of a new study; `folder`: None for a new one under runs/."""
        path = (folder or default_run_path(["tune", *self.command])).absolute()
        return TuneDocument(
            folder=str(path),
            command=self.command,
            np=self.np,
            launch=self.options.recorded(),
            fixed=self.fixed,
            request={
                "knobs": self.knobs,
                "metric": self.metric.pattern.pattern if self.metric is not None else None,
                "trial_seconds": self.limits.trial,
            },
        )


def set_options(settings: JobSettings) -> list[str]:
    """The settings as values of --set."""
    return [f"{knob}={value}" for knob, value in settings.items()]
