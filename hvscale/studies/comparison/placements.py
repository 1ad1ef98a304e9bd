"""Compares a command in several placements: the overhead of each over the first one."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from hvscale.core.errors import RequestError
from hvscale.core.statistics import Estimate, as_columns, estimate, ratio
from hvscale.core.units import human_range, human_seconds
from hvscale.launch import placements
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.profiling.compare import Comparison, ComparisonRow
from hvscale.studies.comparison.summary import SummaryDocument, SummaryRow
from hvscale.studies.comparison.summary_study import SummaryStudy


class PlacementRow(BaseModel):
    """One placement: geometric means over its runs with 95 % intervals, None if unknown.

    `overhead_percent`: (its time / the first one's - 1) * 100, run by run within a round. The time
    is seconds or 1 / throughput, as `measured_by` says. `verdict`: None for the first one.
    """

    placement: str
    runs: int
    throughput: float | None
    throughput_low: float | None
    throughput_high: float | None
    seconds: float | None
    seconds_low: float | None
    seconds_high: float | None
    overhead_percent: float | None
    overhead_percent_low: float | None
    overhead_percent_high: float | None
    verdict: str | None


class PlacementComparison(SummaryDocument):
    """compare-placements.json, which `hvscale compare-placements --json` prints."""

    variant: ClassVar[str] = "placement"
    change: ClassVar[str] = "overhead"

    schema_: Literal["hvscale/compare-placements/2"] = "hvscale/compare-placements/2"
    rows: list[PlacementRow] = Field(default_factory=list)

    def tabulate(self) -> None:
        self.rows = [self.row(name) for name in self.launch if self.measured(name, "seconds")]

    def row(self, name: str) -> PlacementRow:
        """The row of a placement that has a finished run."""
        throughputs, seconds = self.measured(name, "throughput"), self.measured(name, "seconds")
        time = self.time_ratio(name) if name != self.baseline else None
        return PlacementRow(
            placement=name,
            runs=len(seconds),
            **as_columns("throughput", estimate(list(throughputs.values())) if throughputs else None),
            **as_columns("seconds", estimate(list(seconds.values()))),
            **as_columns("overhead_percent", time.change_percent() if time is not None else None),
            verdict=time.verdict("slower", "faster") if time is not None else None,
        )

    def time_ratio(self, name: str) -> Estimate | None:
        """The placement's time over the baseline's. Time is seconds or 1 / throughput."""
        if self.measured_by == "throughput":
            return ratio(self.measured(self.baseline, "throughput"), self.measured(name, "throughput"))
        return ratio(self.measured(name, "seconds"), self.measured(self.baseline, "seconds"))

    def summary(self) -> list[SummaryRow]:
        measure = self.measured_by or "throughput"
        return [
            SummaryRow(
                row.placement,
                row.runs,
                from_columns(row, measure),
                from_columns(row, "overhead_percent"),
                row.verdict,
            )
            for row in self.rows
        ]

    def change_note(self) -> str:
        return f"overhead: time over {self.baseline}'s, round by round"

    def sentences(self) -> list[str]:
        return [overhead_sentence(profile) for profile in self.profiles]


def placement_study(
    names: list[str],
    command: list[str],
    *,
    repeats: int,
    metric: str | None,
    bins: str,
    options: LaunchOptions,
) -> SummaryStudy[PlacementComparison]:
    """The study of `command` in each of the placements.

    The placement options in `options` go to every placement that supports them. Raises RequestError
    for an invalid request; starts nothing.
    """
    if len(names) < 2 or len(set(names)) != len(names) or "" in names:
        raise RequestError(
            f"{','.join(names)}: name two placements or more, each once, of {', '.join(placements.names())}"
        )
    options_by_name, warnings = options_of_each(names, options.placement, options.np)
    study = SummaryStudy(
        "compare-placements",
        PlacementComparison,
        {name: options.replace(placement=placement) for name, placement in options_by_name.items()},
        command,
        repeats=repeats,
        metric=metric,
        bins=bins,
        folder_name=lambda name: name.replace(":", "-"),  # Docker's mounts and LD_PRELOAD split paths at colons
    )
    study.document.warnings += warnings
    return study


def placement_names(options: PlacementOptions) -> list[str]:
    """The names in a comma-separated --placement. Raises RequestError for a repeated name."""
    names = [name.strip() for name in options.name.split(",")]
    if len(set(names)) != len(names):
        raise RequestError(f"--placement {options.name}: name each once; use --repeat for more starts")
    return names


def options_of_each(
    names: list[str], options: PlacementOptions, np: int
) -> tuple[dict[str, PlacementOptions], list[str]]:
    """For each placement the options that it supports, and warnings about the others.

    Raises RequestError as a launch does: for an unknown placement, an option that none of the
    placements supports, and what this machine cannot do.
    """
    known = {name: placements.find(name) for name in names}
    warnings = []
    for option in sorted(options.given()):
        takers = [name for name, place in known.items() if option in place.takes]
        if not takers:
            placements.get(options.model_copy(update={"placement": names[0]}), np)
        others = [name for name in names if name not in takers]
        if others:
            warnings.append(
                f"--{option.replace('_', '-')} does not apply to {', '.join(others)}, only to {', '.join(takers)}; "
                "the overhead includes its effect"
            )
    by_name = {
        name: PlacementOptions(
            placement=name, **{option: getattr(options, option) for option in options.given() & place.takes}
        )
        for name, place in known.items()
    }
    for one in by_name.values():
        placements.get(one, np)
    return by_name, warnings


def from_columns(row: PlacementRow, name: str) -> Estimate | None:
    """The inverse of `as_columns`."""
    mean, low, high = (getattr(row, column) for column in (name, f"{name}_low", f"{name}_high"))
    return Estimate(mean=mean, low=low, high=high) if mean is not None else None


def overhead_sentence(comparison: Comparison) -> str:
    """How the communication time changed, per rank, and which messages changed most."""
    name = Path(comparison.run_after).name
    total = comparison.total
    if total.verdict not in ("more", "less"):
        return f"{name}: no difference in communication time is shown"
    change = growth(total)
    most = max(comparison.rows, key=lambda row: growth(row) if change > 0 else -growth(row))
    seconds, in_most = (human_seconds(abs(value) / comparison.np) for value in (change, growth(most)))
    return (
        f"{name}: communication takes {seconds} {total.verdict} per rank and {comparison.per}; "
        f"the largest {'increase' if change > 0 else 'decrease'} is in {most.operation} of "
        f"{human_range(most.bytes_min, most.bytes_max)}: {in_most}"
    )


def growth(row: ComparisonRow) -> float:
    """In seconds, summed over the ranks."""
    return row.seconds_after - row.seconds_before
