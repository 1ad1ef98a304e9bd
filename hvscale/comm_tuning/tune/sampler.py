"""Suggests the next settings with Optuna, whose study is in a file."""

import random
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import optuna
from optuna.trial import TrialState
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from hvscale.comm_tuning.tune.job_space import JobSettings, JobSpace
from hvscale.comm_tuning.tune.scores import SettingsKey, settings_key
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import write_atomically

NAME = "hvscale"
SEED = 1
STARTUP_TRIALS = 8  # drawn at random, until the model has enough data
MAX_REPEATS = 20  # suggestions of known settings in a row; then an untried point is drawn
SMALL_SPACE = 4096  # points; up to this size all points are listed


@dataclass(frozen=True)
class Suggestion:
    """Settings to try. `number`: of Optuna's trial, None if Optuna did not suggest them."""

    settings: dict[str, str]
    number: int | None


@contextmanager
def study_file(file: Path) -> Iterator[None]:
    """Turn an error of Optuna's file into a RequestError of one line."""
    try:
        yield
    except OSError as error:
        raise RequestError(f"cannot write {file}: {error.strerror}. Run the same command again to resume") from error
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, LookupError, ValueError) as error:
        cause = error.__cause__ or error  # Optuna wraps SQLAlchemy's error, which wraps SQLite's
        what = next(iter(str(cause).splitlines()), type(cause).__name__)
        if "disk is full" in what:
            raise RequestError(
                f"cannot write {file}: {what}. Free some space, then run the same command to resume"
            ) from error
        raise RequestError(
            f"{file} cannot be used ({what}): remove it, then run the same command: it resumes from the trials in tune.json"
        ) from error


def create_study(file: Path) -> None:
    """Write a study without trials.

    Optuna creates its tables one by one. An interruption between them would leave a file that later
    takes a second study of the same name.
    """
    storage = optuna.storages.RDBStorage("sqlite://")  # in memory
    optuna.create_study(study_name=NAME, storage=storage, direction="maximize")
    database = cast(sqlite3.Connection, storage.engine.raw_connection().driver_connection)
    write_atomically(file, lambda stream: stream.write(database.serialize()))


class Sampler:
    """Maximises the ratio of a trial's throughput to the defaults'.

    It uses a multivariate tree-structured Parzen estimator, which models dependent knobs together.
    `known`: the ratios of settings that are not suggested again.
    """

    def __init__(self, file: Path, space: JobSpace, known: Mapping[SettingsKey, float]) -> None:
        """Create the study in the file, or resume it.

        Suggestions of an interrupted search without a result are dropped here, and not when it is
        interrupted: a Ctrl-C within a transaction leaves SQLite's lock with that process.
        """
        self.space, self.known = space, dict(known)
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # study_file reports errors in one line
        self.file = file
        with study_file(file):
            self._open(file)
        self.queue: list[JobSettings] = []

    def _open(self, file: Path) -> None:
        if file.exists() and not file.is_file():  # SQLite would block on a FIFO
            raise ValueError("not a regular file")
        if not file.exists():
            create_study(file)
        url = URL.create("sqlite", database=str(file)).render_as_string()  # the path may have a ? or %
        storage = optuna.storages.RDBStorage(url, skip_table_creation=True)
        # A new seed for each call, or a resumed search would suggest the same settings again.
        seed = SEED + len(self.known)
        self.random = random.Random(seed)  # noqa: S311 - no secret
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, group=True, n_startup_trials=STARTUP_TRIALS
            )
        self.study = optuna.load_study(study_name=NAME, storage=storage, sampler=sampler)
        for _ in self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self.study.ask()
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.tell(trial.number, state=TrialState.FAIL)

    def try_first(self, settings: JobSettings) -> None:
        """Suggest these settings before Optuna's, if they are in the space and untried."""
        if self.space.contains(settings) and settings_key(settings) not in self.known:
            self.queue.append(settings)

    def ask(self, base: JobSettings | None = None, free: frozenset[str] = frozenset()) -> Suggestion | None:
        """The next settings to try; None if all have been tried.

        With `base`, only the knobs in `free` differ from it. Raises RequestError if the study's
        file is damaged or cannot be written, as does `tell`.
        """
        with study_file(self.file):
            return self._ask(base, free)

    def _ask(self, base: JobSettings | None, free: frozenset[str]) -> Suggestion | None:
        for _ in range(MAX_REPEATS):
            if base is not None:
                fixed = {knob: at for knob, at in self.space.parameters(base).items() if knob not in free}
                self.study.enqueue_trial(fixed)
            elif self.queue:
                self.study.enqueue_trial(self.space.parameters(self.queue.pop(0)))
            trial = self.study.ask()
            settings = self.space.choose(_OptunaChooser(trial))
            value = self.known.get(settings_key(settings))
            if value is None:
                return Suggestion(settings, trial.number)
            self.study.tell(trial, value)
        if base is not None:
            return None
        untried = self._untried()
        return Suggestion(untried, None) if untried is not None else None

    def tell(self, suggestion: Suggestion, ratio: float) -> None:
        """Record the ratio to the defaults, FAILED_RATIO for settings that failed."""
        self.known[settings_key(suggestion.settings)] = ratio
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

    def _untried(self) -> dict[str, str] | None:
        if self.space.size() <= SMALL_SPACE:
            left = [settings for settings in self.space.points() if settings_key(settings) not in self.known]
            return self.random.choice(left) if left else None
        drawn = (self.space.random(self.random) for _ in range(SMALL_SPACE))
        return next((settings for settings in drawn if settings_key(settings) not in self.known), None)


class _OptunaChooser:
    """Chooses the point that an Optuna trial suggests."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def index_of(self, knob: str, count: int) -> int:
        return self.trial.suggest_int(knob, 0, count - 1)

    def value_of(self, knob: str, values: tuple[str, ...]) -> str:
        return self.trial.suggest_categorical(knob, values)
