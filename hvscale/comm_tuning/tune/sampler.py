"""Suggests the next settings, with Optuna; its study is kept in a file."""

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from hvscale.comm_tuning.tune.job_space import JobSettings, JobSpace
from hvscale.comm_tuning.tune.scores import Key, key
from hvscale.core.errors import RequestError

NAME = "hvscale"
SEED = 1
STARTUP_TRIALS = 8  # drawn at random, before the model has enough data
MAX_REPEATS = 20  # suggestions of known settings in a row, before an untried point is taken instead
SMALL_SPACE = 4096  # points: a space of this size is listed in full


@dataclass(frozen=True)
class Suggestion:
    """Settings to try.

    `number`: of the trial in Optuna's study; None for settings that Optuna did not suggest.
    """

    settings: dict[str, str]
    number: int | None


@contextmanager
def study_file(file: Path) -> Iterator[None]:
    """Turns an error of Optuna's file into a RequestError of one line."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, LookupError, ValueError) as error:
        cause = error.__cause__ or error  # Optuna wraps what SQLAlchemy raises, and that what SQLite says
        what = next(iter(str(cause).splitlines()), type(cause).__name__)
        if "disk is full" in what:
            raise RequestError(
                f"cannot write {file}: {what}. Make room, then run the same command to resume"
            ) from error
        raise RequestError(
            f"{file} cannot be used ({what}): remove it, then run the same command: it resumes from the trials in tune.json"
        ) from error


class Sampler:
    """Maximises the ratio of a trial's throughput to the defaults'.

    It uses a multivariate tree-structured Parzen estimator, which models knobs that depend on each
    other together. `known` settings, each with its ratio, are not suggested again.
    """

    def __init__(self, file: Path, space: JobSpace, known: Mapping[Key, float]) -> None:
        """Resumes the study in the file, if there is one.

        Suggestions of an interrupted search that got no result are dropped.
        """
        self.space, self.known = space, dict(known)
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # study_file reports errors in one line
        self.file = file
        with study_file(file):
            self._open(file)
        self.queue: list[JobSettings] = []

    def _open(self, file: Path) -> None:
        if file.exists() and not file.is_file():  # SQLite would wait for a FIFO's other end
            raise ValueError("not a regular file")
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        # A new seed for each call, or a resumed search would suggest the same settings again.
        seed = SEED + len(self.known)
        self.random = random.Random(seed)  # noqa: S311 - no secret
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, group=True, n_startup_trials=STARTUP_TRIALS
            )
        self.study = optuna.create_study(
            study_name=NAME, storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
        )
        for _ in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self.study.ask()
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(trial.number, state=TrialState.FAIL)

    def try_first(self, settings: JobSettings) -> None:
        """Suggest these before Optuna's own, if the space has them and they are not known."""
        if self.space.holds(settings) and key(settings) not in self.known:
            self.queue.append(settings)

    def ask(self, held: JobSettings | None = None, among: frozenset[str] = frozenset()) -> Suggestion | None:
        """The next settings to try; with `held`, only knobs of `among` differ from those.

        None when nothing new is left.

        Raises RequestError when the study's file is damaged or cannot be written; so do `tell` and
        `forget`.
        """
        with study_file(self.file):
            return self._ask(held, among)

    def _ask(self, held: JobSettings | None, among: frozenset[str]) -> Suggestion | None:
        for _ in range(MAX_REPEATS):
            if held is not None:
                fixed = {knob: at for knob, at in self.space.parameters(held).items() if knob not in among}
                self.study.enqueue_trial(fixed)
            elif self.queue:
                self.study.enqueue_trial(self.space.parameters(self.queue.pop(0)))
            trial = self.study.ask()
            settings = self.space.choose(_OptunaChooser(trial))
            value = self.known.get(key(settings))
            if value is None:
                return Suggestion(settings, trial.number)
            self.study.tell(trial, value)
        if held is not None:
            return None
        untried = self._untried()
        return Suggestion(untried, None) if untried is not None else None

    def tell(self, suggestion: Suggestion, ratio: float) -> None:
        """Record the ratio to the defaults; FAILED_RATIO for settings that must not be used."""
        self.known[key(suggestion.settings)] = ratio
        with study_file(self.file):
            self._tell(suggestion, ratio)

    def _tell(self, suggestion: Suggestion, ratio: float) -> None:
        if suggestion.number is None:
            self.study.enqueue_trial(self.space.parameters(suggestion.settings))
            trial = self.study.ask()
            self.space.choose(_OptunaChooser(trial))
            self.study.tell(trial, ratio)
        else:
            self.study.tell(suggestion.number, ratio)

    def forget(self, suggestion: Suggestion) -> None:
        """Drop a suggestion that was not measured."""
        if suggestion.number is not None:
            with study_file(self.file):
                self.study.tell(suggestion.number, state=TrialState.FAIL)

    def _untried(self) -> dict[str, str] | None:
        if self.space.size() <= SMALL_SPACE:
            left = [settings for settings in self.space.points() if key(settings) not in self.known]
            return self.random.choice(left) if left else None
        drawn = (self.space.random(self.random) for _ in range(SMALL_SPACE))
        return next((settings for settings in drawn if key(settings) not in self.known), None)


class _OptunaChooser:
    """Chooses a point as an Optuna trial suggests."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def position(self, knob: str, count: int) -> int:
        return self.trial.suggest_int(knob, 0, count - 1)

    def word(self, knob: str, values: tuple[str, ...]) -> str:
        return self.trial.suggest_categorical(knob, values)
