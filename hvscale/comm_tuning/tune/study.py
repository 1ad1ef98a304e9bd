"""One tuning study: its folder and document, and what its trials have shown so far of the job."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.knobs.settings import parse, target_of
from hvscale.comm_tuning.tune import scores
from hvscale.comm_tuning.tune.document import TuneDocument
from hvscale.comm_tuning.tune.job_space import JobSettings, space_of
from hvscale.comm_tuning.tune.losses import differing_loss
from hvscale.comm_tuning.tune.request import TuneRequest, set_options
from hvscale.comm_tuning.tune.search_space import PROMISING
from hvscale.comm_tuning.tune.step_source import StepSource
from hvscale.core.run_folder import RunFolder
from hvscale.core.trainer_defaults import ON_CPU
from hvscale.launch.environment import env_variables
from hvscale.launch.mpi.reported_library import require_requested_library
from hvscale.studies.base import Study

if TYPE_CHECKING:
    from hvscale.comm_tuning.tune.sampler import Sampler

START = "start-"  # how the folders of the search's starts begin; a number follows


class TuneStudy(Study[TuneDocument]):
    """`document` is written to tune.json after every trial and every pair of the proof.

    `limits`: the request's until the defaults were measured, which make them tighter.
    `losses_repeat`: whether every start with the defaults gives the same losses; None while that is
    not known.
    """

    verb = "tune"
    must_match = ("command", "np", "launch", "fixed", "request")
    run_folders = f"{START}*"

    def __init__(self, request: TuneRequest, folder: Path | None = None) -> None:
        super().__init__(request.new_document(folder))
        self.request, self.limits = request, request.limits
        self.source = StepSource(request.np, request.metric)
        # Our own trainer takes commands while it runs: to check its sums, to change Horovod's
        # settings, to stop.
        self.takes_commands = [Path(word).name for word in request.command[:2]] == ["hvscale", "train"]
        self.losses_repeat = True if self.takes_commands else None
        if self.takes_commands:
            self.source.kind = "steps"
        self.sampler: Sampler | None = None

    def resume(self, before: TuneDocument) -> None:
        self.document = before.model_copy(update={"folder": str(self.path)})
        if before.trials:
            self.source.lock(RunFolder(self.path / before.trials[0].run))
            for run in self.runs_of_defaults()[1:]:
                self.compare_losses_of_defaults(run)
            self.begin_sampling()

    def begin_sampling(self) -> None:
        from hvscale.comm_tuning.tune.sampler import Sampler  # Optuna takes a second to import

        space = space_of(self.document.space, self.target())
        self.sampler = Sampler(self.path / "study.db", space, scores.known(self.document.trials))
        for settings in PROMISING:
            self.sampler.try_first(settings)

    def variables(self, settings: JobSettings) -> Mapping[str, str]:
        """The environment variables that a fresh start with these settings is given."""
        return env_variables(self.request.options_with(settings).env)

    def target(self) -> Target:
        """The job with the defaults.

        What our trainer sets on a CPU belongs to them, unless the user has set it.
        """
        fixed = parse(set_options(self.document.fixed))
        found = target_of(fixed, self.document.command, self.request.options)
        on_cpu = self.document.host is None or not self.document.host.gpus
        own = ON_CPU if self.takes_commands and on_cpu else {}
        return replace(found, environment={**own, **found.environment})

    def check_library(self, run: RunFolder) -> None:
        """Check that the run used the requested library.

        Raises UntrustedError, and drops the run's trials, if it did not.
        """
        record = run.read()
        self.document.library = record.measured_library
        if record.library_difference:
            self.document.trials = [trial for trial in self.document.trials if trial.run != run.path.name]
        require_requested_library(record)

    # Losses: a sum that is wrong on all ranks alike shows in them alone.

    def runs_of_defaults(self) -> list[RunFolder]:
        """Every finished run of the defaults, the first one first."""
        names = [trial.run for trial in self.document.trials if not trial.settings]
        if self.document.proof is not None:
            names += [pair.default_run for pair in self.document.proof.pairs]
        return [RunFolder(self.path / name) for name in names]

    def wrong_losses(self, run: RunFolder) -> str | None:
        """How the first losses of a run differ from those of the defaults.

        None where they do not, or cannot show anything.
        """
        first = next(iter(self.runs_of_defaults()), None)
        return differing_loss(run, first) if first is not None and self.losses_repeat is not False else None

    def compare_losses_of_defaults(self, run: RunFolder) -> None:
        """Learn from another run of the defaults whether their losses repeat."""
        if self.losses_repeat is None and self.runs_of_defaults():
            self.losses_repeat = self.wrong_losses(run) is None
            if not self.losses_repeat:
                self.warn("the command's losses differ from start to start, so they cannot show wrong sums")

    # Folders of starts.

    def next_start(self) -> str:
        """The name of the next start's folder."""
        taken = [start_number(path.name) for path in self.path.glob(self.run_folders)]
        return f"{START}{max(taken, default=0) + 1:04d}"

    def free_name(self, name: str) -> str:
        """This name for a folder, or one with a number behind it: an interrupted run keeps its
        own.
        """
        attempt, free = 1, name
        while (self.path / free).exists():
            attempt += 1
            free = f"{name}-attempt-{attempt}"
        return free

    # Its outputs are files of their own, written at the end (outputs/).

    def tabulate(self) -> None:
        """The document holds no tables."""

    def has_figures(self) -> bool:
        return False


def start_number(folder: str) -> int:
    return int(folder.removeprefix(START))
