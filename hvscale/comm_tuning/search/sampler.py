"""What to try next: Optuna, asked and told, with its study in a file."""

import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import TrialState

from hvscale.comm_tuning.search.scores import Key, key
from hvscale.comm_tuning.search.space import Settings, Space

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


class Sampler:
    """Maximises the ratio of a trial's throughput to the defaults' (tree-structured Parzen estimator, knobs that depend on each other together).

    Settings that are `known` are not suggested again.
    """

    def __init__(self, file: Path, space: Space, known: Mapping[Key, float]) -> None:
        """Goes on with the study in the file, if there is one. What was asked and never told was lost with who asked."""
        self.space, self.known = space, dict(known)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        # Another seed for each day of a study, or it would suggest the first day's again.
        seed = SEED + len(known)
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
        self.queue: list[Settings] = []

    def first(self, settings: Settings) -> None:
        """Have these tried before Optuna's own, if the space has them and they are not known."""
        if self.space.holds(settings) and key(settings) not in self.known:
            self.queue.append(settings)

    def ask(self, held: Settings | None = None, among: frozenset[str] = frozenset()) -> Suggestion | None:
        """What to try next. With `held`: only knobs of `among` differ from these settings. None when nothing new is left."""
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
        """`ratio` to the defaults; WORTHLESS for what must not be used."""
        self.known[key(suggestion.settings)] = ratio
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
