"""Runs a command in several placements, interleaved: the overhead of each over the first, by
message size.
"""

from typing import Literal

from pydantic import BaseModel, Field

from hvscale.core.errors import RequestError
from hvscale.core.statistics import Estimate, as_columns, estimate, ratio
from hvscale.launch import placements
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.studies.comparison import ComparisonDocument, ComparisonStudy

VERB = "compare-placements"


class PlacementRow(BaseModel):
    """One placement: geometric means over its runs with 95 % intervals, None where they are not
    known.

    `overhead_percent`: (its time / the first one's - 1) * 100, run by run in the rounds that both
    finished, of seconds or of 1 / throughput, as `measured_by` says. The verdict is None for the
    first.
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


class PlacementComparison(ComparisonDocument):
    """What `hvscale compare-placements --json` prints, by alias, and the folder's
    compare-placements.json.
    """

    schema_: Literal["hvscale/compare-placements/2"] = "hvscale/compare-placements/2"
    rows: list[PlacementRow] = Field(default_factory=list)

    def tabulate(self) -> None:
        self.rows = [self.row(name) for name in self.launch if self.measured(name, "seconds")]

    def row(self, name: str) -> PlacementRow:
        """Of a placement that has a finished run."""
        throughputs, seconds = self.measured(name, "throughput"), self.measured(name, "seconds")
        first = next(iter(self.launch))
        time = self.time_ratio(first, name) if name != first else None
        return PlacementRow(
            placement=name,
            runs=len(seconds),
            **as_columns("throughput", estimate(list(throughputs.values())) if throughputs else None),
            **as_columns("seconds", estimate(list(seconds.values()))),
            **as_columns("overhead_percent", time.change_percent() if time is not None else None),
            verdict=time.verdict("slower", "faster") if time is not None else None,
        )

    def time_ratio(self, first: str, name: str) -> Estimate | None:
        """A throughput's time is its inverse."""
        if self.measured_by == "throughput":
            return ratio(self.measured(first, "throughput"), self.measured(name, "throughput"))
        return ratio(self.measured(name, "seconds"), self.measured(first, "seconds"))


def placement_study(
    names: list[str],
    command: list[str],
    *,
    repeats: int,
    metric: str | None,
    bins: str,
    options: LaunchOptions,
) -> ComparisonStudy[PlacementComparison]:
    """What measures `command` in each of the placements. The placement of `options` holds those for
    all of them.

    Raises RequestError for what cannot be measured; starts nothing.
    """
    if len(names) < 2 or len(set(names)) != len(names) or "" in names:
        raise RequestError(
            f"{','.join(names)}: name two placements or more, each once, of {', '.join(placements.names())}"
        )
    each, unknown = options_of_each(names, options.placement, options.np)
    jobs = {name: options.replace(placement=placement) for name, placement in each.items()}
    turns = ComparisonStudy(
        VERB,
        PlacementComparison,
        jobs,
        command,
        repeats=repeats,
        metric=metric,
        bins=bins,
        # A colon in a folder's name would end it, for Docker's mounts and for LD_PRELOAD.
        label=lambda name: name.replace(":", "-"),
    )
    turns.document.warnings += unknown
    return turns


def options_of_each(
    names: list[str], options: PlacementOptions, np: int
) -> tuple[dict[str, PlacementOptions], list[str]]:
    """Each placement with those of the options that mean something to it, and a warning for each
    that is not for all of them.

    Raises RequestError, as a launch does, for an unknown placement, an option that none of them
    takes, and for what this machine cannot do.
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
    each = {
        name: PlacementOptions(
            placement=name, **{option: getattr(options, option) for option in options.given() & place.takes}
        )
        for name, place in known.items()
    }
    for one in each.values():
        placements.get(one, np)
    return each, warnings
