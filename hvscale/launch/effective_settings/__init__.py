"""Collects the settings that a job's libraries report as in effect.

A file in this folder registers a reader for a library that any job may use. A flavour's reader is
its `settings_reader`, in the flavour's file.
"""

import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hvscale.core.registry import Registry
from hvscale.core.run_folder import Library, ReportedSettings, RunFolder

FOLDER = "settings-reports"  # of a run
LOOK_SECONDS, LOOK_SECONDS_PER_RANK = 1.0, 0.004  # a look may open every rank's log


@dataclass(frozen=True)
class LaunchedJob:
    """A started job; `environment` is that of its command."""

    run: RunFolder
    library: Library
    command: list[str]
    environment: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return self.run.path / FOLDER

    def variables_with_prefix(self, *prefixes: str) -> dict[str, str]:
        """The job's variables with one of these prefixes, by name."""
        return {name: value for name, value in sorted(self.environment.items()) if name.startswith(prefixes)}


class SettingsReader(Protocol):
    """Reads the settings that a library reports as in effect."""

    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        """Variables that make the library report its settings and change nothing else.

        The user's values from --env take precedence.
        """

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        """What the library reported; None if nothing was asked for or the report is not there yet.

        The report is complete once the job has `ended`.
        """


READERS: Registry[SettingsReader] = Registry("settings reader", __name__)


def register(name: str, reader: SettingsReader) -> None:
    READERS.register(name, reader)


class SettingsReports:
    """Asks the libraries of a job of `np` ranks for their settings and collects the reports.

    `own`: the reader of the job's flavour.
    """

    def __init__(self, job: LaunchedJob, own: SettingsReader | None, np: int) -> None:
        self._job = job
        # Copies, because a reader may keep what it has read of the job.
        self._silent = deepcopy([*([own] if own is not None else []), *READERS.all().values()])
        self._look_seconds = max(LOOK_SECONDS, LOOK_SECONDS_PER_RANK * np)
        self._look_at = 0.0

    def variables(self) -> dict[str, str]:
        """Variables to add to the ranks' environment so that the libraries report their
        settings.
        """
        self._job.run.make_subfolder(self._job.folder)
        found: dict[str, str] = {}
        for reader in self._silent:
            found |= reader.reporting_variables(self._job)
        return {name: value for name, value in found.items() if name not in self._job.environment}

    def new(self, ended: bool = False) -> Iterator[ReportedSettings]:
        """The reports since the last call.

        Looks about once a second, in large jobs less often, and once more when the job has ended.
        """
        now = time.monotonic()
        if now < self._look_at and not ended:
            return
        self._look_at = now + self._look_seconds
        for reader in list(self._silent):
            reported = reader.read(self._job, ended)
            if reported is not None:
                self._silent.remove(reader)
                yield reported


def warnings(reported: ReportedSettings) -> list[str]:
    """A line for each variable that was not applied."""
    return [f"{name}: {why}" for name, why in reported.not_applied.items()]
