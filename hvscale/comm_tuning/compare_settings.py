"""Measures a command under several named settings, interleaved: throughput and gain."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from hvscale.comm_tuning.knobs.library import libraries
from hvscale.comm_tuning.knobs.named_settings import NAMED, NamedSettings
from hvscale.comm_tuning.knobs.settings import target_of, with_settings
from hvscale.comm_tuning.knobs.settings_file import with_settings_file
from hvscale.core.errors import RequestError
from hvscale.core.statistics import Estimate, estimate, percent, ratio
from hvscale.launch.options import LaunchOptions
from hvscale.studies.comparison import ComparisonDocument, ComparisonStudy

VERB = "compare-settings"
# What a name ends with that is a file's.
FILE = ".toml"


class SettingsRow(BaseModel):
    """One of the settings.

    `throughput` over its fresh starts; `gain`: its ratio to the first ones' in the same round, None
    for those.
    """

    settings: str
    knobs: dict[str, str]
    runs: list[str]
    throughputs: list[float]
    throughput: Estimate
    gain: Estimate | None


class SettingsComparison(ComparisonDocument):
    """What `hvscale compare-settings --json` prints, and compare-settings.json holds."""

    schema_: Literal["hvscale/compare-settings/2"] = "hvscale/compare-settings/2"
    measured_by: Literal["throughput", "seconds"] | None = "throughput"
    rows: list[SettingsRow] = Field(default_factory=list)

    def tabulate(self) -> None:
        first = self.measured(next(iter(self.launch)), "throughput")
        self.rows = []
        for number, (name, options) in enumerate(self.launch.items()):
            found = self.measured(name, "throughput")
            if found:
                self.rows.append(
                    SettingsRow(
                        settings=name,
                        knobs=options.knobs,
                        runs=[turn.folder for turn in self.runs if turn.name == name and turn.throughput is not None],
                        throughputs=list(found.values()),
                        throughput=estimate(list(found.values())),
                        gain=ratio(found, first) if number else None,
                    )
                )


def settings_study(
    names: list[str],
    command: list[str],
    *,
    repeats: int,
    metric: str | None,
    bins: str,
    options: LaunchOptions,
) -> ComparisonStudy[SettingsComparison]:
    """What measures `command` under each of the settings.

    Raises RequestError for what cannot be measured; starts nothing.
    """
    if len(names) < 2 or len({label(name) for name in names}) != len(names):
        raise RequestError(f"{','.join(names)}: name two settings or more, each once, of {known()}")
    jobs = {name: job_of(name, command, options) for name in names}
    return ComparisonStudy(
        VERB, SettingsComparison, jobs, command, repeats=repeats, metric=metric, bins=bins, label=label
    )


def known() -> str:
    return f"{', '.join(NAMED)}, or files such as settings{FILE}"


def label(name: str) -> str:
    """What the runs under these settings are called."""
    return Path(name).stem if name.endswith(FILE) else name


def job_of(name: str, command: list[str], options: LaunchOptions) -> LaunchOptions:
    """The options under these settings. Raises RequestError when its libraries cannot do them."""
    if name.endswith(FILE):
        from_file = with_settings_file(Path(name), options)
        return with_settings(from_file.set, command, from_file)
    settings = NAMED.get(name)
    if settings is None:
        raise RequestError(f"{name}: no such settings; known are {known()}")
    check_library(name, settings, command, options)
    refused: RequestError | None = None
    for variant in settings.variants:
        try:
            return with_settings(variant, command, options)
        except RequestError as error:
            refused = error
    raise RequestError(f"{name}: {refused}")


def check_library(name: str, settings: NamedSettings, command: list[str], options: LaunchOptions) -> None:
    for library in libraries():
        if library.key == settings.library and library.in_job(target_of([], command, options)) is not True:
            raise RequestError(
                f"{name}: this job's Horovod is built without {library.name}; a set-up on a machine with CUDA builds it in"
            )


def settings_rows(document: SettingsComparison) -> list[list[str]]:
    """The cells of the table. Settings, throughput, gain and its interval, and the verdict."""
    rows = []
    for row in document.rows:
        gain = row.gain
        if gain is None:
            words = ["", "", ""]
        elif gain.low is None or gain.high is None:
            words = [percent(gain.mean), "", "unknown: one start"]
        else:
            interval = f"{percent(gain.low)} to {percent(gain.high)}"
            words = [percent(gain.mean), interval, gain.verdict("faster", "slower")]
        rows.append([row.settings, f"{row.throughput.mean:.4g}", *words])
    return rows
