"""A tuning study: its folder, the search in it, and the proof; each can be broken off and gone on with."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.knobs.settings import given_in, parse, target_of, with_settings
from hvscale.comm_tuning.tune import scores
from hvscale.comm_tuning.tune.document import Pair, Proof, StudyState, Trial, TuneDocument
from hvscale.comm_tuning.tune.in_process_restart import InProcessRestart
from hvscale.comm_tuning.tune.job_profile import job_profile
from hvscale.comm_tuning.tune.job_space import Settings, check_names, choices, fixed_settings, space_of, without_orphans
from hvscale.comm_tuning.tune.losses import differing_loss
from hvscale.comm_tuning.tune.outputs import write_outputs
from hvscale.comm_tuning.tune.search_space import PROMISING
from hvscale.comm_tuning.tune.step_source import MEASURED_BY, StepSource, recording_of
from hvscale.comm_tuning.tune.trial_monitor import FollowUp, TrialLimits, TrialMonitor, TrialOutcome, outcome_of
from hvscale.core.documents import to_json
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError, UntrustedError
from hvscale.core.run_folder import RunFolder, cannot_write, default_run_path, write_text
from hvscale.core.statistics import Estimate, estimate
from hvscale.core.trainer_defaults import ON_CPU
from hvscale.core.trial_protocol import TrialFolder
from hvscale.launch import flavours
from hvscale.launch.controller import RunInterruptedError
from hvscale.launch.environment import named
from hvscale.launch.mpi.reported_library import require_asked_library
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.profiling.analyze.breakdown import read_recording, require_complete
from hvscale.profiling.analyze.period import share_of_a_step
from hvscale.profiling.compare import compare
from hvscale.studies.folder import load_previous, lock_folder
from hvscale.studies.profiled_launch import profiled_launch
from hvscale.studies.throughput import Metric

if TYPE_CHECKING:
    from hvscale.comm_tuning.tune.sampler import Sampler, Suggestion

LEAST_PAIRS = 7
DEFAULTS_EVERY = (
    8  # trials: the machine's speed may change meanwhile, and trials are compared with the last one of the defaults
)
TRIALS = 40  # where neither --trials nor --minutes bounds the search
# What makes a study the same; more trials, minutes or pairs may be asked for in the same folder.
SAME = ("command", "np", "launch", "fixed", "request")
# Seconds until something is taken to hang, and how many times as long it took with the defaults.
LEAST_STALL, STALL_TIMES = 10.0, 10
LEAST_START, START_TIMES = 60.0, 10


class Shown(Protocol):
    """Who is told what goes on."""

    def trial(self, settings: Settings) -> None:
        """One begins."""

    def told(self, trial: Trial, ratio: float) -> None:
        """One has ended, and was so many times as fast as the defaults."""

    def pair(self, settings: Settings, number: int, pairs: int) -> None:
        """One of the proof begins."""


class TuneStudy:
    """`document` is in tune.json after every trial."""

    def __init__(
        self,
        path: Path,
        document: TuneDocument,
        options: LaunchOptions,
        *,
        knobs: list[str] | None,
        metric: Metric | None,
        trials: int | None,
        minutes: float | None,
        pairs: int,
        limits: TrialLimits,
    ) -> None:
        self.path, self.document, self.options = path, document, options
        self.tune_json = path / "tune.json"
        self.knobs, self.source = knobs, StepSource(document.np, metric)
        self.trials, self.minutes, self.pairs = trials, minutes, pairs
        self.asked_limits = self.limits = limits
        # Our own trainer ends, and takes other settings of Horovod, when it is told to.
        self.takes_commands = [Path(word).name for word in document.command[:2]] == ["hvscale", "train"]
        self.same_losses_each_time = True if self.takes_commands else None
        if self.takes_commands:
            self.source.kind = "steps"
        self.sampler: Sampler | None = None
        self.began = time.monotonic()
        self.shown: Shown
        self.tell_user: Callable[[str], None]

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
        path: Path | None,
        options: LaunchOptions,
    ) -> Self:
        """`options`: of every start. Raises RequestError for what cannot be searched; starts and writes nothing."""
        if options.np < 2:
            raise RequestError(f"-np {options.np}: a rank alone sends no messages; give -np 2 or more")
        for name, value in {
            "--trials": trials,
            "--minutes": minutes,
            "--first-step-timeout": first_step_timeout,
            "--trial-seconds": trial_seconds,
        }.items():
            if value is not None and value <= 0:
                raise RequestError(f"{name} {value:g}: give a number above 0")
        if pairs < LEAST_PAIRS:
            raise RequestError(f"--pairs {pairs}: fewer than {LEAST_PAIRS} prove little")
        check_names(knobs)
        fixed = fixed_settings(fix)
        found = Metric.parse(metric) if metric is not None else None
        with_settings(requests(fixed), command, options)  # a mistake is to be known before anything is started
        folder = (path or default_run_path(["tune", *command])).absolute()
        document = TuneDocument(
            folder=str(folder),
            command=command,
            np=options.np,
            launch=options.recorded(),
            fixed=fixed,
            request={"knobs": knobs, "metric": metric, "trial_seconds": trial_seconds},
        )
        return cls(
            folder,
            document,
            options,
            knobs=knobs,
            metric=found,
            trials=TRIALS if trials is None and minutes is None else trials,
            minutes=minutes,
            pairs=pairs,
            limits=TrialLimits(first_step=first_step_timeout, stall=first_step_timeout, trial=trial_seconds),
        )

    def run(self, shown: Shown, warn: Callable[[str], None]) -> None:
        """Search, then prove. What was measured is kept in any case.

        Raises RequestError for a folder that holds something else or in which another study is at work; RankFailedError and UntrustedError when
        the command fails with the defaults, or no step of it can be seen; RunInterruptedError.
        """
        self.shown, self.tell_user = shown, warn
        with self.open_folder():
            try:
                if not self.is_being_proven():
                    self.search()
                self.prove()
                self.document.state = "finished"  # in the outputs; in tune.json only once they are there
                write_outputs(self.path, self.document)
                self.write("finished")
            except BaseException as error:
                ended: StudyState = "failed" if isinstance(error, HvscaleError) else "interrupted"
                self.write("interrupted" if isinstance(error, RunInterruptedError) else ended)
                raise

    def search(self) -> None:
        """Trials until their number or time is used up, or nothing is left to try; the defaults first, and again now and then."""
        self.write("searching")
        begun = len(self.document.trials)
        while not self.is_over():
            if self.sampler is None or len(self.document.trials) == begun or self.since_defaults() >= DEFAULTS_EVERY:
                self.measure({}, None)
                continue
            suggestion = self.sampler.ask()
            if suggestion is None:
                break
            self.measure(suggestion.settings, suggestion)
        self.run_off()

    def is_over(self) -> bool:
        trials = len(self.document.trials)
        late = self.minutes is not None and time.monotonic() - self.began > 60 * self.minutes
        return trials > 0 and (late or (self.trials is not None and trials >= self.trials))

    def since_defaults(self) -> int:
        """Trials since the last one of the defaults."""
        return next(back for back, trial in enumerate(reversed(self.document.trials)) if not trial.settings)

    def run_off(self) -> None:
        """Measure the few best once more, on fresh starts: the best of many trials was the luckiest, too."""
        while True:
            found = scores.scores(self.document.trials)
            few = scores.finalists(self.document.trials)
            once = [settings for settings in few if len(found[settings]) == 1]
            if len(few) < 2 or not once:
                return
            if self.document.trials[-1].settings and len(once) == len(few):
                self.measure({}, None, alone=True)
            self.measure(dict(sorted(once[0])), None, alone=True)

    def measure(self, settings: dict[str, str], asked: "Suggestion | None", alone: bool = False) -> None:
        """A trial of these settings on a fresh start; where the job takes orders, further ones in the same start.

        `alone`: no further ones, and it is measured to its end, also where it is a little slower than the best.
        """
        number = self.next_start()
        run = RunFolder(self.path / f"start-{number:04d}")
        again: InProcessRestart | None = None

        def done(outcome: TrialOutcome) -> FollowUp | None:
            nonlocal asked, again
            self.tell(outcome, asked, number, run)
            asked = None
            if alone or self.sampler is None or not self.can_go_on(outcome):
                return None
            again = again or InProcessRestart(self.target(), named(self.options_with(settings).env), number)
            among = again.free(self.sampler.space)
            asked = self.sampler.ask(outcome.settings, among) if among else None
            if asked is None:
                return None
            self.shown.trial(asked.settings)
            wanted = named(self.options_with(asked.settings).env)
            return FollowUp(asked.settings, again.variables(self.sampler.space, asked.settings, wanted))

        self.shown.trial(settings)
        try:
            start = self.follow(run, settings, done, self.to_beat if settings and not alone else lambda: None)
        finally:
            if asked is not None and self.sampler is not None:
                self.sampler.forget(asked)
        if not settings and start.first_step_after is not None:
            usual = max(LEAST_START, START_TIMES * start.first_step_after)
            self.limits = replace(self.limits, first_step=min(self.asked_limits.first_step, usual))

    def can_go_on(self, outcome: TrialOutcome) -> bool:
        """Whether another trial may follow in the same start."""
        fine = outcome.state == "measured" and self.takes_commands and flavours.get(self.options.mpi).has_mpi
        return fine and not self.is_over()

    def to_beat(self) -> float | None:
        """The best throughput so far, on this day."""
        defaults = [trial.throughput for trial in self.document.trials if not trial.settings and trial.throughput]
        return defaults[-1].mean * scores.best_ratio(self.document.trials) if defaults else None

    def follow(
        self,
        run: RunFolder,
        settings: Settings,
        done: Callable[[TrialOutcome], FollowUp | None],
        best: Callable[[], float | None],
    ) -> TrialMonitor:
        """Start the job with these settings, and follow it to its end."""
        commands = TrialFolder(run.path) if self.takes_commands else None
        if commands is not None:
            commands.path.mkdir(parents=True)
        start = TrialMonitor(
            run, dict(settings), self.source, lambda: self.limits, best, done, self.wrong_losses, commands
        )
        failure = None
        try:
            options = self.options_with(settings).replace(run=run.path)
            profiled_launch(self.document.command, options, LaunchHooks(warn=self.warn, watch=start.watch))
        except RankFailedError as error:
            failure = error
        start.ended(failure)
        self.check_library(run)
        return start

    def options_with(self, settings: Settings) -> LaunchOptions:
        """The options of the launch that these settings ask for."""
        return with_settings(requests({**self.document.fixed, **settings}), self.document.command, self.options)

    def target(self) -> Target:
        """The job with the defaults: what our trainer sets by itself is in its environment, where nobody else has set it."""
        found = target_of(parse(requests(self.document.fixed)), self.document.command, self.options)
        on_cpu = self.document.host is None or not self.document.host.gpus
        return replace(found, environment={**(ON_CPU if self.takes_commands and on_cpu else {}), **found.environment})

    def tell(self, outcome: TrialOutcome, asked: "Suggestion | None", number: int, run: RunFolder) -> None:
        """Keep what came of a trial. The defaults decide what is searched, and how it is measured."""
        if not outcome.settings:
            outcome = self.settled(outcome, run)
        elif outcome.state == "wrong sums":
            outcome = self.judged_again(outcome, run)
        trial = Trial(
            number=len(self.document.trials),
            settings=outcome.settings,
            state=outcome.state,
            run=run.path.name,
            start=number,
            steps=outcome.steps,
            seconds=outcome.seconds,
            throughput=outcome.throughput,
            problem=outcome.problem,
        )
        self.document.trials.append(trial)
        ratio = scores.ratios(self.document.trials)[-1]
        if not self.document.space:
            self.decide_space(run)
        self.write(self.document.state)
        if self.sampler is None:
            self.begin_sampling()
        elif asked is not None:
            self.sampler.tell(asked, ratio)
        self.shown.told(trial, ratio)

    def settled(self, outcome: TrialOutcome, run: RunFolder) -> TrialOutcome:
        """The defaults' trial, by what will measure all others. Raises what keeps them from being compared with."""
        if outcome.failure is not None:
            raise RankFailedError(f"with the defaults {outcome.problem}", outcome.failure.last_lines)
        if not self.document.space:  # what this profile does not hold would not be searched
            require_complete(run, read_recording(run).incomplete)
        if outcome.steps:
            self.source.lock(run)
            if not self.takes_commands:
                again = outcome_of({}, self.source.steps(run), self.source)
                outcome = replace(outcome, steps=again.steps, throughput=again.throughput)
        if outcome.throughput is None or self.source.kind is None:
            self.refuse(outcome, run)
        if outcome.state != "measured":
            raise UntrustedError(
                f"with the defaults: {outcome.problem}; there is nothing to compare with. See {run.path}"
            )
        self.limits = replace(self.limits, stall=max(LEAST_STALL, STALL_TIMES * outcome.longest_wait))
        steps = self.source.steps(run)
        self.document.unit = steps.unit if steps is not None else None
        self.document.measured_by = MEASURED_BY[self.source.kind]
        self.check_library(run)
        record = run.read()
        self.document.host, self.document.transport = record.host, record.library.transport
        return outcome

    def check_library(self, run: RunFolder) -> None:
        """Raises UntrustedError for a start on another library than the one that was asked for; its trials are then dropped."""
        record = run.read()
        self.document.library = record.measured_library
        if record.library_difference:
            self.document.trials = [trial for trial in self.document.trials if trial.run != run.path.name]
        require_asked_library(record)

    def refuse(self, outcome: TrialOutcome, run: RunFolder) -> NoReturn:
        """Raises UntrustedError: no step was seen."""
        what = outcome.problem if outcome.state == "hung" else "the command has ended"
        looked = (
            "what --metric matches"
            if self.source.metric is not None
            else "lines of steps.jsonl, marked steps and collectives"
        )
        raise UntrustedError(
            f"no step of the command was seen ({what}; looked for: {looked}): say with --metric REGEX what it prints, or give it more time "
            f"with --first-step-timeout. See {run.log(0)}"
        )

    def decide_space(self, run: RunFolder) -> None:
        given = given_in(self.options)
        found = choices(self.target(), job_profile(run), self.knobs, self.document.fixed, given)
        self.document.space = without_orphans(found)

    def begin_sampling(self) -> None:
        from hvscale.comm_tuning.tune.sampler import Sampler  # Optuna takes a second to import

        space = space_of(self.document.space, self.target())
        self.sampler = Sampler(self.path / "study.db", space, scores.known(self.document.trials))
        for settings in PROMISING:
            self.sampler.first(settings)

    def wrong_losses(self, run: RunFolder) -> str | None:
        """What is wrong with a start's first losses, beside those of the first start; None where they cannot tell."""
        first = next((trial.run for trial in self.document.trials if not trial.settings), None)
        if first is None or self.same_losses_each_time is False:
            return None
        return differing_loss(run, RunFolder(self.path / first))

    def judged_again(self, outcome: TrialOutcome, run: RunFolder) -> TrialOutcome:
        """Losses tell something only of a command whose losses are the same with the defaults each time: where that is not known, see."""
        if self.same_losses_each_time is None:
            self.measure({}, None)
            defaults = [trial.run for trial in self.document.trials if not trial.settings]
            self.same_losses_each_time = self.wrong_losses(RunFolder(self.path / defaults[-1])) is None
            if not self.same_losses_each_time:
                self.warn("the command's losses differ from start to start: they do not tell whether sums are right")
        if self.same_losses_each_time:
            return outcome
        return replace(outcome, state="measured", problem=None)

    # The proof.

    def is_being_proven(self) -> bool:
        """Whether an earlier call was broken off in the proof."""
        proof = self.document.proof
        return proof is not None and len(proof.pairs) < self.pairs

    def prove(self) -> None:
        """The best settings and the defaults on fresh starts, in turns; `winner` are the settings only if they are faster beyond doubt."""
        found = scores.finalists(self.document.trials)
        if not found:
            self.document.proof, self.document.winner = None, {}
            return
        settings = dict(sorted(found[0]))
        proof = self.document.proof
        if proof is None or proof.settings != settings:
            proof = Proof(settings=settings, pairs=[], gain=Estimate(mean=1, low=None, high=None), taken=False)
        self.document.proof, self.document.winner = proof, None
        while len(proof.pairs) < self.pairs:
            number = len(proof.pairs) + 1
            self.write("proving")
            self.shown.pair(settings, number, self.pairs)
            pair = self.measure_pair(settings, number)
            if pair is None:
                self.document.winner = {}
                return
            proof.pairs.append(pair)
            proof.gain = estimate([one.tuned / one.default for one in proof.pairs])
        proof.taken = proof.gain.low is not None and proof.gain.low > 1
        self.document.winner = settings if proof.taken else {}
        self.compare_profiles(proof)

    def measure_pair(self, settings: Settings, number: int) -> Pair | None:
        """Which goes first changes, so that a machine that grows slower speaks for neither. None when the settings failed."""
        order = ("default", "tuned") if number % 2 else ("tuned", "default")
        runs = {name: self.free_folder(f"proof-{number}-{name}") for name in order}
        found: dict[str, float] = {}
        for name in order:
            outcome = self.measure_once(runs[name], settings if name == "tuned" else {})
            if outcome.state != "measured" or outcome.throughput is None:
                if name == "default":
                    raise outcome.failure or UntrustedError(
                        f"with the defaults: {outcome.problem}. See {runs[name].path}"
                    )
                self.warn(
                    f"the best settings failed in the proof ({outcome.problem}): keep the defaults. See {runs[name].path}"
                )
                return None
            found[name] = outcome.throughput.mean
        return Pair(
            default=found["default"],
            tuned=found["tuned"],
            default_run=runs["default"].path.name,
            tuned_run=runs["tuned"].path.name,
        )

    def measure_once(self, run: RunFolder, settings: Settings) -> TrialOutcome:
        outcomes: list[TrialOutcome] = []

        def done(outcome: TrialOutcome) -> None:
            outcomes.append(outcome)

        self.follow(run, settings, done, lambda: None)
        return outcomes[0]

    def compare_profiles(self, proof: Proof) -> None:
        last = proof.pairs[-1]
        try:
            before, after = (RunFolder(self.path / name) for name in (last.default_run, last.tuned_run))
            share = self.source.share or share_of_a_step(recording_of(before))[0]
            self.document.profile = compare(before, after, share=share)
        except (RequestError, UntrustedError) as error:
            self.warn(f"the profiles before and after cannot be compared: {error}")

    # The folder.

    @contextmanager
    def open_folder(self) -> Iterator[None]:
        """Make the folder, or take up the study in it, for this process alone. A new one in which nothing was started goes again."""
        with lock_folder(self.path):
            new = not self.tune_json.exists()
            self.take_up()
            try:
                yield
            finally:
                if new and not any(self.path.glob("start-*")):
                    self.tune_json.unlink(missing_ok=True)

    def take_up(self) -> None:
        """What an earlier call has left in the folder. Raises RequestError when it is something else, or was asked something else."""
        before = load_previous(self.tune_json, self.document, SAME)
        if before is None:
            return
        self.document = before.model_copy(update={"folder": str(self.path)})
        if before.trials:
            self.source.lock(RunFolder(self.path / before.trials[0].run))
            self.begin_sampling()

    def next_start(self) -> int:
        taken = [int(path.name.removeprefix("start-")) for path in self.path.glob("start-*")]
        return max(taken, default=0) + 1

    def free_folder(self, name: str) -> RunFolder:
        """One that is not there yet: what was broken off keeps its own."""
        attempt, path = 1, self.path / name
        while path.exists():
            attempt += 1
            path = self.path / f"{name}-attempt-{attempt}"
        return RunFolder(path)

    def write(self, state: StudyState) -> None:
        """Raises RequestError when the folder cannot be written or the disk is full."""
        self.document.state = state
        try:
            write_text(self.tune_json, to_json(self.document) + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def warn(self, text: str) -> None:
        if text not in self.document.warnings:
            self.document.warnings.append(text)
            self.tell_user(text)


def requests(settings: Settings) -> list[str]:
    """In the words of --set."""
    return [f"{knob}={value}" for knob, value in settings.items()]
