"""Compares a command under several named settings: throughput, and gain over the first ones."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from hvscale.core.statistics import Estimate, estimate, ratio
from hvscale.launch.options import LaunchOptions
from hvscale.report.tables import TableModel
from hvscale.studies.comparison.study import MeasuredBy
from hvscale.studies.comparison.summary import SummaryDocument, SummaryRow
from hvscale.studies.comparison.summary_study import SummaryStudy


class SettingsRow(BaseModel):
    """One of the settings.

    `throughput`: the geometric mean over its runs. `gain`: the ratio to the throughput of the first
    settings, run by run within a round; None for those.
    """

    settings: str
    knobs: dict[str, str]
    runs: list[str]
    throughputs: list[float]
    throughput: Estimate
    gain: Estimate | None


class SettingsComparison(SummaryDocument):
    """compare-settings.json, which `hvscale compare-settings --json` prints."""

    variant: ClassVar[str] = "settings"
    change: ClassVar[str] = "gain"

    schema_: Literal["hvscale/compare-settings/2"] = "hvscale/compare-settings/2"
    measured_by: MeasuredBy | None = "throughput"
    rows: list[SettingsRow] = Field(default_factory=list)

    def tabulate(self) -> None:
        self.rows = [self.row(name) for name in self.launch if self.measured(name, "throughput")]

    def row(self, name: str) -> SettingsRow:
        """The row of settings that have a finished run."""
        throughputs = self.measured(name, "throughput")
        baseline = self.measured(self.baseline, "throughput")
        return SettingsRow(
            settings=name,
            knobs=self.launch[name].knobs,
            runs=[run.folder for run in self.runs if run.name == name and run.repeat in throughputs],
            throughputs=list(throughputs.values()),
            throughput=estimate(list(throughputs.values())),
            gain=ratio(throughputs, baseline) if name != self.baseline else None,
        )

    def summary(self) -> list[SummaryRow]:
        return [
            SummaryRow(
                row.settings,
                len(row.runs),
                row.throughput,
                row.gain.change_percent() if row.gain is not None else None,
                row.gain.verdict("faster", "slower") if row.gain is not None else None,
            )
            for row in self.rows
        ]

    def change_note(self) -> str:
        return f"gain: throughput over {self.baseline}'s, round by round"

    def details(self) -> list[TableModel]:
        """The knobs, with their value in each of the settings."""
        knobs = dict.fromkeys(name for row in self.rows for name in row.knobs)
        if not knobs:
            return []
        values = [[name, *(row.knobs.get(name, "-") for row in self.rows)] for name in knobs]
        columns = ["knob", *(row.settings for row in self.rows)]
        return [TableModel(title="Knobs", columns=columns, groups={"": values}, caption=["-: the default"])]


def settings_study(
    jobs: Mapping[str, LaunchOptions],
    command: list[str],
    *,
    repeats: int,
    metric: str | None,
    bins: str,
    folder_name: Callable[[str], str],
) -> SummaryStudy[SettingsComparison]:
    """The study of `command` under the settings whose launch options `jobs` holds by name.

    `folder_name` turns such a name into that of its run folders. Raises RequestError for an invalid
    request; starts nothing.
    """
    return SummaryStudy(
        "compare-settings",
        SettingsComparison,
        jobs,
        command,
        repeats=repeats,
        metric=metric,
        bins=bins,
        folder_name=folder_name,
    )
