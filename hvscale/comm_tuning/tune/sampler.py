"""What to try next: Optuna, asked and told, with its study in a file."""

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from hvscale.comm_tuning.tune.job_space import JobSpace, Settings
from hvscale.comm_tuning.tune.scores import Key, key
from hvscale.core.errors import RequestError

NAME = "hvscale"
SEED = 1
STARTUP_TRIALS = 8  # drawn at random, before a model of what is good is worth something
KNOWN_AGAIN = 20  # times that what is known may be suggested before something else is taken
SMALL = 4096  # points of a space that are looked through one by one


@dataclass(frozen=True)
class Suggestion:
    """Settings to try, and the number under which Optuna is told of them; None for those that it did not suggest."""

    settings: dict[str, str]
    number: int | None


@contextmanager
def study_file(file: Path) -> Iterator[None]:
    """Raises RequestError, in one line, for what goes wrong with Optuna's file within."""
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
    """Maximises the ratio of a trial's throughput to the defaults' (tree-structured Parzen estimator, knobs that depend on each other together).

    Settings that are `known` are not suggested again.
    """

    def __init__(self, file: Path, space: JobSpace, known: Mapping[Key, float]) -> None:
        """Goes on with the study in the file, if there is one. What was asked and never told was lost with who asked."""
        self.space, self.known = space, dict(known)
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # what goes wrong is said by study_file, in one line
        self.file = file
        with study_file(file):
            self._open(file)
        self.queue: list[Settings] = []

    def _open(self, file: Path) -> None:
        if file.exists() and not file.is_file():  # SQLite would wait for a FIFO's other end
            raise ValueError("not a regular file")
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        # Another seed for each day of a study, or it would suggest the first day's again.
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

    def first(self, settings: Settings) -> None:
        """Have these tried before Optuna's own, if the space has them and they are not known."""
        if self.space.holds(settings) and key(settings) not in self.known:
            self.queue.append(settings)

    def ask(self, held: Settings | None = None, among: frozenset[str] = frozenset()) -> Suggestion | None:
        """What to try next. With `held`: only knobs of `among` differ from these settings. None when nothing new is left.

        Raises RequestError when the study's file is damaged or cannot be written; so do `tell` and `forget`.
        """
        with study_file(self.file):
            return self._ask(held, among)

    def _ask(self, held: Settings | None, among: frozenset[str]) -> Suggestion | None:
        for _ in range(KNOWN_AGAIN):
            if held is not None:
                fixed = {knob: at for knob, at in self.space.parameters(held).items() if knob not in among}
                self.study.enqueue_trial(fixed)
            elif self.queue:
                self.study.enqueue_trial(self.space.parameters(self.queue.pop(0)))
            trial = self.study.ask()
            settings = self.space.choose(_Optuna(trial))
            value = self.known.get(key(settings))
            if value is None:
                return Suggestion(settings, trial.number)
            self.study.tell(trial, value)
        if held is not None:
            return None
        untried = self._untried()
        return Suggestion(untried, None) if untried is not None else None

    def tell(self, suggestion: Suggestion, ratio: float) -> None:
        """`ratio` to the defaults; FAILED_RATIO for what must not be used."""
        self.known[key(suggestion.settings)] = ratio
        with study_file(self.file):
            self._tell(suggestion, ratio)

    def _tell(self, suggestion: Suggestion, ratio: float) -> None:
        if suggestion.number is None:
            self.study.enqueue_trial(self.space.parameters(suggestion.settings))
            trial = self.study.ask()
            self.space.choose(_Optuna(trial))
            self.study.tell(trial, ratio)
        else:
            self.study.tell(suggestion.number, ratio)

    def forget(self, suggestion: Suggestion) -> None:
        """It was not tried to its end."""
        if suggestion.number is not None:
            with study_file(self.file):
                self.study.tell(suggestion.number, state=TrialState.FAIL)

    def _untried(self) -> dict[str, str] | None:
        if self.space.size() <= SMALL:
            left = [settings for settings in self.space.points() if key(settings) not in self.known]
            return self.random.choice(left) if left else None
        drawn = (self.space.random(self.random) for _ in range(SMALL))
        return next((settings for settings in drawn if key(settings) not in self.known), None)


class _Optuna:
    """An Optuna trial as who chooses a point."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def position(self, knob: str, count: int) -> int:
        return self.trial.suggest_int(knob, 0, count - 1)

    def word(self, knob: str, values: tuple[str, ...]) -> str:
        return self.trial.suggest_categorical(knob, values)
