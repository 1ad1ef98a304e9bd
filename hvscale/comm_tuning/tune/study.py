"""One tuning study: its folder, its document, and what its trials have shown about the job."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.knobs.settings import parse, target_of
from hvscale.comm_tuning.tune import scores
from hvscale.comm_tuning.tune.document import TuneDocument
from hvscale.comm_tuning.tune.job_space import JobSettings, space_of
from hvscale.comm_tuning.tune.request import TuneRequest, set_options
from hvscale.comm_tuning.tune.search_space import PROMISING
from hvscale.comm_tuning.tune.steps import StepSource, differing_loss
from hvscale.core.run_folder import RunFolder, is_own_command
from hvscale.core.trainer_defaults import CPU_ENVIRONMENT
from hvscale.launch.environment import env_variables
from hvscale.launch.mpi.reported_library import require_requested_library
from hvscale.studies.base import Study

if TYPE_CHECKING:
    from hvscale.comm_tuning.tune.sampler import Sampler

START = "start-"  # prefix of the search's run folders; a number follows
START_FOLDER = re.compile(rf"{START}\d+")


class TuneStudy(Study[TuneDocument]):
    """A tuning study, whose tune.json is written after every trial and every pair of the proof.

    `limits`: those of the request, tightened after the trial of the defaults. `losses_repeat`:
    whether every start with the defaults gives the same losses, None while unknown.
    """

    verb = "tune"
    must_match = ("command", "np", "launch", "fixed", "request")
    run_folders = f"{START}*"

    def __init__(self, request: TuneRequest, folder: Path | None = None) -> None:
        super().__init__(request.new_document(folder))
        self.request, self.limits = request, request.limits
        self.source = StepSource(request.np, request.metric)
        # Our trainer takes commands while it runs: check sums, change Horovod's settings, stop.
        self.takes_commands = is_own_command(request.command, "train")
        self.losses_repeat = True if self.takes_commands else None
        if self.takes_commands:
            self.source.kind = "steps"
        self.sampler: Sampler | None = None

    def resume(self, previous: TuneDocument) -> None:
        self.document = previous.model_copy(update={"folder": str(self.path)})
        if previous.trials:
            self.source.lock(RunFolder(self.path / previous.trials[0].run))
            for run in self.runs_of_defaults()[1:]:
                self.compare_losses_of_defaults(run)
            self.begin_sampling()

    def begin_sampling(self) -> None:
        from hvscale.comm_tuning.tune.sampler import Sampler  # Optuna takes a second to import

        space = space_of(self.document.space, self.target())
        self.sampler = Sampler(self.path / "study.db", space, scores.known_ratios(self.document.trials))
        for settings in PROMISING:
            self.sampler.try_first(settings)

    def variables(self, settings: JobSettings) -> Mapping[str, str]:
        """The environment variables of a fresh start with these settings."""
        return env_variables(self.request.options_with(settings).env)

    def target(self) -> Target:
        """The job with the defaults, including what our trainer sets on a CPU."""
        fixed = parse(set_options(self.document.fixed))
        found = target_of(fixed, self.document.command, self.request.options)
        on_cpu = self.document.host is None or not self.document.host.gpus
        own = CPU_ENVIRONMENT if self.takes_commands and on_cpu else {}
        return replace(found, environment={**own, **found.environment})

    def check_library(self, run: RunFolder) -> None:
        """Check that the run used the requested library.

        If not, drop the run's trials and raise UntrustedError.
        """
        record = run.read()
        self.document.library = record.measured_library
        if record.library_difference:
            self.document.trials = [trial for trial in self.document.trials if trial.run != run.path.name]
        require_requested_library(record)

    def runs_of_defaults(self) -> list[RunFolder]:
        """Every finished run of the defaults, in order."""
        names = [trial.run for trial in self.document.trials if not trial.settings]
        if self.document.proof is not None:
            names += [pair.default_run for pair in self.document.proof.pairs]
        return [RunFolder(self.path / name) for name in names]

    def wrong_losses(self, run: RunFolder) -> str | None:
        """How the losses of a run differ from those of the defaults; None if not, or unknown."""
        first = next(iter(self.runs_of_defaults()), None)
        return differing_loss(run, first) if first is not None and self.losses_repeat is not False else None

    def compare_losses_of_defaults(self, run: RunFolder) -> None:
        """Find out from another run of the defaults whether their losses repeat."""
        if self.losses_repeat is None and self.runs_of_defaults():
            self.losses_repeat = self.wrong_losses(run) is None
            if not self.losses_repeat:
                self.warn("the losses differ from start to start, so they cannot show wrong sums")

    def next_start(self) -> str:
        """The name of the next start's folder."""
        taken = [
            start_number(path.name) for path in self.path.glob(self.run_folders) if START_FOLDER.fullmatch(path.name)
        ]
        return f"{START}{max(taken, default=0) + 1:04d}"

    def free_name(self, name: str) -> str:
        """An unused folder name: `name`, or with a number, because failed runs are kept."""
        attempt, free = 1, name
        while (self.path / free).exists():
            attempt += 1
            free = f"{name}-attempt-{attempt}"
        return free

    def tabulate(self) -> None:
        """The document has no tables; `outputs` writes the files at the end."""

    def has_figures(self) -> bool:
        return False


def start_number(folder: str) -> int:
    return int(folder.removeprefix(START))
