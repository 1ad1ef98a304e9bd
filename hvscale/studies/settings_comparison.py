"""Measures a command under several named settings, interleaved: throughput and gain."""

from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import BaseModel, Field

from hvscale.core.statistics import Estimate, estimate, percent, ratio
from hvscale.launch.options import LaunchOptions
from hvscale.studies.comparison import ComparisonDocument, ComparisonStudy

VERB = "compare-settings"


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
    jobs: Mapping[str, LaunchOptions],
    command: list[str],
    *,
    repeats: int,
    metric: str | None,
    bins: str,
    label: Callable[[str], str],
) -> ComparisonStudy[SettingsComparison]:
    """What measures `command` under each of the settings, which `jobs` holds by name as launch
    options.

    `label` makes a name into that of its runs' folders. Raises RequestError for what cannot be
    measured; starts nothing.
    """
    return ComparisonStudy(
        VERB, SettingsComparison, jobs, command, repeats=repeats, metric=metric, bins=bins, label=label
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
