"""What the libraries of a job report as their settings in effect, beside what was asked for.

A file in this folder registers a reader for a library that any job may use. A flavour's own reader
is its `settings_reader`, in the flavour's file.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hvscale.core.registry import Registry
from hvscale.core.run_folder import Library, ReportedSettings, RunFolder

FOLDER = "settings-reports"  # of a run
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class LaunchedJob:
    """A job as its libraries were started: `environment` is what its ranks have, the command's own
    included.
    """

    run: RunFolder
    library: Library
    command: list[str]
    environment: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return self.run.path / FOLDER

    def variables_with_prefix(self, *prefixes: str) -> dict[str, str]:
        """The variables with one of these prefixes, by name."""
        return {name: value for name, value in sorted(self.environment.items()) if name.startswith(prefixes)}


class SettingsReader(Protocol):
    """A library that can be asked which settings it uses."""

    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        """Variables that make it report them, without effect on what the job does; the user's own,
        given with --env, win.
        """

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        """What it reported; None when nothing was asked for, or nothing is there yet. Nothing more
        comes once the job has `ended`.
        """


READERS: Registry[SettingsReader] = Registry("settings reader", __name__)


def register(name: str, reader: SettingsReader) -> None:
    READERS.register(name, reader)


class SettingsReports:
    """Asks the libraries of a job, and collects what they report as they report it. `own`: the
    reader of the job's flavour.
    """

    def __init__(self, job: LaunchedJob, own: SettingsReader | None) -> None:
        self._job = job
        self._silent = [*([own] if own is not None else []), *READERS.all().values()]
        self._look_at = 0.0

    def variables(self) -> dict[str, str]:
        """What the ranks' environment needs in addition for the libraries to report their
        settings.
        """
        self._job.run.make_subfolder(self._job.folder)
        found: dict[str, str] = {}
        for reader in self._silent:
            found |= reader.reporting_variables(self._job)
        return {name: value for name, value in found.items() if name not in self._job.environment}

    def new(self, ended: bool = False) -> Iterator[ReportedSettings]:
        """What was reported since the last call; looks once a second, and once more when the job
        has ended.
        """
        now = time.monotonic()
        if now < self._look_at and not ended:
            return
        self._look_at = now + LOOK_SECONDS
        for reader in list(self._silent):
            reported = reader.read(self._job, ended)
            if reported is not None:
                self._silent.remove(reader)
                yield reported


def warnings(reported: ReportedSettings) -> list[str]:
    """One line for each variable that was not applied."""
    return [f"{name}: {why}" for name, why in reported.not_applied.items()]
