"""What the libraries of a job say they use, beside what was asked for. Each library is one file in this folder that registers itself."""

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hvscale.core.run_folder import InEffect, Library, RunFolder

FOLDER = "in-effect"  # of a run
LOOK_SECONDS = 1.0

Show = Callable[[int, str], None]
# Given the environment the user asked for, and what shows a rank's line: what shows it in its place.
Hide = Callable[[Mapping[str, str], Show], Show]


@dataclass(frozen=True)
class Started:
    """A job as its libraries were started: `environment` is what its ranks have, the command's own included."""

    run: RunFolder
    library: Library
    command: list[str]
    environment: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return self.run.path / FOLDER

    def asked(self, *prefixes: str) -> dict[str, str]:
        """The variables with one of these prefixes, by name."""
        return {name: value for name, value in sorted(self.environment.items()) if name.startswith(prefixes)}


class Reporter(Protocol):
    """A library that can be asked what it uses."""

    def ask(self, started: Started) -> dict[str, str]:
        """Variables that make it tell; the user's own, given with --env, win. Without effect on what the job does."""

    def read(self, started: Started, ended: bool) -> InEffect | None:
        """What it told; None when it was not asked for anything, or has not told yet. Once the job has `ended` nothing more comes."""


_reporters: dict[str, Reporter] = {}
_hide: dict[str, Hide] = {}


def register(name: str, reporter: Reporter, hide: Hide | None = None) -> None:
    """`hide`: for a flavour of this name, whose answer stands among the ranks' output."""
    _reporters[name] = reporter
    if hide is not None:
        _hide[name] = hide


def without_answers(flavour: str, environment: Mapping[str, str], show: Show) -> Show:
    """`show` without the lines that a library prints only because hvscale asked it. The ranks' logs keep them."""
    return _hide[flavour](environment, show) if flavour in _hide else show


def questions(started: Started) -> dict[str, str]:
    """What the ranks' environment needs in addition for the libraries to tell what they use."""
    started.run.make_subfolder(started.folder)
    found: dict[str, str] = {}
    for reporter in _reporters.values():
        found |= reporter.ask(started)
    return {name: value for name, value in found.items() if name not in started.environment}


class Answers:
    """Collects what the libraries tell as they tell it."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._silent = dict(_reporters)
        self._look_at = 0.0

    def new(self, ended: bool = False) -> Iterator[InEffect]:
        """What was told since the last time; looks once a second, and once more when the job has ended."""
        now = time.monotonic()
        if now < self._look_at and not ended:
            return
        self._look_at = now + LOOK_SECONDS
        for name, reporter in list(self._silent.items()):
            told = reporter.read(self._started, ended)
            if told is not None:
                del self._silent[name]
                yield told


def warnings(told: InEffect) -> list[str]:
    """One line for each variable that did not do what was asked."""
    return [f"{name}: {why}" for name, why in told.not_taken.items()]


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
