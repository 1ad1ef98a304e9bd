"""The search space of one job: its knobs with their values, and why others are left out."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from hvscale.comm_tuning.knobs.library import MEANING, Spelling, Target
from hvscale.comm_tuning.knobs.settings import (
    Setting,
    accepting_spellings,
    parse,
    spellings_in,
    unknown_knob,
    why_unsupported,
)
from hvscale.comm_tuning.knobs.values import Value
from hvscale.comm_tuning.tune.document import KnobChoice
from hvscale.comm_tuning.tune.job_profile import JobProfile
from hvscale.comm_tuning.tune.search_space import DEFAULT, SEARCH_SPACE, SearchedKnob
from hvscale.core.errors import RequestError

JobSettings = Mapping[str, str]
BY_KNOB = {entry.knob: entry for entry in SEARCH_SPACE}


class Chooser(Protocol):
    """Chooses a value of each knob."""

    def index_of(self, knob: str, count: int) -> int:
        """The index of one of the knob's `count` ordered values."""

    def value_of(self, knob: str, values: tuple[str, ...]) -> str:
        """One of the knob's unordered values."""


@dataclass(frozen=True)
class Dimension:
    """A knob that is searched.

    `values`: as for --set. `default`: the value that the job has anyway. `at_init`: every library
    of the job that has the knob reads it in hvd.init().
    """

    entry: SearchedKnob
    values: tuple[str, ...]
    default: str
    at_init: bool

    @property
    def knob(self) -> str:
        return self.entry.knob

    def choose(self, chooser: Chooser) -> str:
        if self.entry.ordered:
            return self.values[chooser.index_of(self.knob, len(self.values))]
        return chooser.value_of(self.knob, self.values)


@dataclass(frozen=True)
class JobSpace:
    """The points of a search. Settings hold only the knobs that differ from their defaults."""

    dimensions: tuple[Dimension, ...]

    def choose(self, chooser: Chooser) -> dict[str, str]:
        """One point of the space, without knobs that have no effect beside the others."""
        settings: dict[str, str] = {}
        for dimension in self.dimensions:
            if not self.matters(dimension, settings):
                continue
            value = dimension.choose(chooser)
            if value != dimension.default:
                settings[dimension.knob] = value
        return settings

    def matters(self, dimension: Dimension, settings: JobSettings) -> bool:
        """Whether the knob has an effect with these settings of the knobs before it."""
        among, never = dimension.entry.only_with, dimension.entry.not_with
        if among and not any(settings.get(knob) in values for knob, values in among.items()):
            return False
        in_effect = {one.knob: one.default for one in self.dimensions} | dict(settings)
        return not any(in_effect.get(knob) in values for knob, values in never.items())

    def parameters(self, settings: JobSettings) -> dict[str, int | str]:
        """The choice for every knob with which `choose` returns these settings."""
        found: dict[str, int | str] = {}
        for dimension in self.dimensions:
            value = settings.get(dimension.knob, dimension.default)
            found[dimension.knob] = dimension.values.index(value) if dimension.entry.ordered else value
        return found

    def contains(self, settings: JobSettings) -> bool:
        values = {dimension.knob: dimension.values for dimension in self.dimensions}
        return all(value in values.get(knob, ()) for knob, value in settings.items())

    def size(self) -> int:
        """An upper bound on the number of points."""
        return math.prod(len(dimension.values) for dimension in self.dimensions)

    def points(self) -> Iterator[dict[str, str]]:
        """Every point once; only for small spaces."""
        seen = set()
        for words in itertools.product(*(dimension.values for dimension in self.dimensions)):
            settings = self.choose(
                _FixedChooser(dict(zip((one.knob for one in self.dimensions), words, strict=True)), self)
            )
            key = frozenset(settings.items())
            if key not in seen:
                seen.add(key)
                yield settings

    def random(self, source: random.Random) -> dict[str, str]:
        words = {dimension.knob: source.choice(dimension.values) for dimension in self.dimensions}
        return self.choose(_FixedChooser(words, self))


class _FixedChooser:
    def __init__(self, words: JobSettings, space: JobSpace) -> None:
        self.words = words
        self.values = {dimension.knob: dimension.values for dimension in space.dimensions}

    def index_of(self, knob: str, count: int) -> int:
        return self.values[knob].index(self.words[knob])

    def value_of(self, knob: str, values: tuple[str, ...]) -> str:
        return self.words[knob]


def check_names(knobs: list[str] | None) -> None:
    """Raises RequestError for an unknown knob, or one that is never searched."""
    for knob in knobs or []:
        if knob not in MEANING:
            raise RequestError(f"--knobs {knob}: {unknown_knob(knob)}")
        if not BY_KNOB[knob].values:
            raise RequestError(f"--knobs {knob}: {BY_KNOB[knob].only_if_named}")


def choices(
    target: Target, job: JobProfile, knobs: list[str] | None, fixed: JobSettings, given: Mapping[str, str]
) -> list[KnobChoice]:
    """Each knob with the values to search, or with none and the reason.

    `knobs`: search only these; None for all that can help. `given`: variables and launch options
    that the user has set, which no trial may change.
    """
    return [_choice(entry, target, job, knobs, fixed, given) for entry in SEARCH_SPACE]


def _choice(
    entry: SearchedKnob,
    target: Target,
    job: JobProfile,
    knobs: list[str] | None,
    fixed: JobSettings,
    given: Mapping[str, str],
) -> KnobChoice:
    def left_out(reason: str) -> KnobChoice:
        return KnobChoice(knob=entry.knob, values=[], reason=reason)

    if entry.knob in fixed:
        return left_out(f"fixed at {fixed[entry.knob]}")
    if knobs is not None and entry.knob not in knobs:
        return left_out("not among --knobs")
    for knob, excluded in entry.not_with.items():
        if fixed.get(knob, "").lower() in excluded:
            return left_out(f"it has next to no effect with {knob}={fixed[knob]}")
    spellings = in_job(target, entry.knob)
    if not spellings:
        return left_out(why_unsupported(entry.knob, target))
    for spelling in spellings:
        for name in spelling.variables:
            if name in given and spelling.is_set_by(name, given[name]):
                return left_out(f"{name} is already set to {given[name]}")
    if entry.only_if_named and (knobs is None or not entry.values):
        return left_out(entry.only_if_named)
    for condition in entry.needs:
        reason = condition(job)
        if reason is not None:
            return left_out(reason)
    asked = list(entry.values(job) if callable(entry.values) else entry.values)
    asked = [value for value in asked if all(spelling.supports(value, job.np) for spelling in spellings)]
    values = with_default(entry, [value for value in asked if is_taken(entry.knob, value, target)], spellings, target)
    if len(values) < 2:
        return left_out(f"only one value: {', '.join(values)}")
    return KnobChoice(knob=entry.knob, values=values, reason=MEANING[entry.knob])


def without_orphans(found: list[KnobChoice]) -> list[KnobChoice]:
    """The choices, without values for a knob that depends on values which are not searched."""
    values = {choice.knob: choice.values for choice in found}
    kept = []
    for choice in found:
        among = BY_KNOB[choice.knob].only_with
        if choice.values and among and not any(set(values[knob]) & set(words) for knob, words in among.items()):
            needed = " or ".join(among)
            choice = KnobChoice(
                knob=choice.knob,
                values=[],
                reason=f"it has an effect only with values of {needed} that are not searched",
            )
        kept.append(choice)
    return kept


def in_job(target: Target, knob: str) -> list[Spelling]:
    sure, perhaps = spellings_in(target, knob)
    return [spelling for _, spelling in sure or perhaps]


def is_taken(knob: str, value: str, target: Target) -> bool:
    with suppress(RequestError):
        return bool(accepting_spellings(Setting(knob, value), target))
    return False


def with_default(entry: SearchedKnob, values: list[str], spellings: list[Spelling], target: Target) -> list[str]:
    """The values with the default, which is DEFAULT if the libraries do not agree on one."""
    named = {default_of(spelling, target) for spelling in spellings}
    default = next(iter(named)) if len(named) == 1 and not entry.varies else None
    if default is None:
        return [DEFAULT, *values]
    first = spellings[0].values
    known = {value: first.parse(value) for value in values}
    same = next((value for value, meant in known.items() if meant == default), None)
    if same is None:
        same = first.show(default)
        known[same] = default
    if not entry.ordered:
        return [same, *(value for value in known if value != same)]
    return sorted(known, key=lambda value: float(known[value]))  # type: ignore[arg-type]


def default_of(spelling: Spelling, target: Target) -> Value | None:
    """The value that the job has by default, from the environment or the library.

    None if no value of the knob means it.
    """
    try:
        return spelling.read({name: target.environment.get(name, word) for name, word in spelling.variables.items()})
    except (KeyError, ValueError):
        return None


def space_of(found: list[KnobChoice], target: Target) -> JobSpace:
    """The space that a document's choices describe."""
    dimensions = []
    for choice in found:
        if choice.values:
            spellings = in_job(target, choice.knob)
            dimensions.append(
                Dimension(
                    entry=BY_KNOB[choice.knob],
                    values=tuple(choice.values),
                    default=default_among(choice.values, spellings, target),
                    at_init=all(spelling.restart == "init" for spelling in spellings),
                )
            )
    return JobSpace(tuple(dimensions))


def default_among(values: list[str], spellings: list[Spelling], target: Target) -> str:
    """The default among `values`. Raises RequestError if the environment has changed it."""
    if values[0] == DEFAULT:
        return DEFAULT
    default = default_of(spellings[0], target)
    for value in values:
        if spellings[0].values.parse(value) == default:
            return value
    raise RequestError(
        f"{', '.join(spellings[0].variables)} in the environment has changed since the study began: unset it, or "
        "give another folder with --run"
    )


def fixed_settings(requests: list[str]) -> dict[str, str]:
    """The settings of --fix KNOB=VALUE. Raises RequestError for invalid ones, as --set does."""
    return {setting.knob: setting.text for setting in parse(requests, option="--fix")}
