"""scale.json: the runs, and the table of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from hvscale.core.run_folder import Library
from hvscale.core.statistics import Estimate, as_columns, estimate, ratio
from hvscale.core.units import human_interval, human_number
from hvscale.launch.options import LaunchOptions
from hvscale.report.tables import TableModel
from hvscale.studies.document import InterleavedDocument
from hvscale.studies.scaling.work import Scaling
from hvscale.studies.throughput import ThroughputSource

SOURCES: dict[ThroughputSource, str] = {
    "metric": "what --metric matches",
    "result.json": "the trainer's result.json",
    "steps.jsonl": "steps.jsonl",
    "horovod": "Horovod's img/sec lines",
}


class ScalingRun(BaseModel):
    """One run of the command.

    `throughput`: of all ranks together, None for a failed run; `problem` says why.
    """

    np: int
    repeat: int
    folder: str
    throughput: float | None = None
    source: ThroughputSource | None = None
    threads_per_rank: int | None = None
    problem: str | None = None


class ScalingRow(BaseModel):
    """One np: geometric means over its runs with 95 % intervals, None if unknown.

    `speed_up`: over the base, run by run within a round. `scaling_efficiency`: speed-up * base_np /
    np.
    """

    np: int
    runs: int
    throughput: float
    throughput_low: float | None
    throughput_high: float | None
    speed_up: float | None
    speed_up_low: float | None
    speed_up_high: float | None
    scaling_efficiency: float | None
    scaling_efficiency_low: float | None
    scaling_efficiency_high: float | None


class ScalingDocument(InterleavedDocument):
    """scale.json, which `hvscale scale --json` prints.

    `unit`: of the throughputs, None if unknown.
    """

    schema_: Literal["hvscale/scale/2"] = "hvscale/scale/2"
    command: list[str]
    scaling: Scaling
    launch: LaunchOptions
    metric: str | None
    np: list[int]
    base_np: int
    unit: str | None = None
    library: Library | None = None
    rows: list[ScalingRow] = []
    runs: list[ScalingRun] = []

    def tabulate(self) -> None:
        self.rows = tabulate(self.runs, self.base_np)


def tabulate(runs: Sequence[ScalingRun], base_np: int) -> list[ScalingRow]:
    """A row for each np that has a throughput, smallest first."""
    measured: dict[int, dict[int, float]] = {}
    for run in runs:
        if run.throughput is not None:
            measured.setdefault(run.np, {})[run.repeat] = run.throughput
    base = measured.get(base_np, {})
    return [_row(np, by_round, base, base_np) for np, by_round in sorted(measured.items())]


def _row(np: int, by_round: dict[int, float], base: dict[int, float], base_np: int) -> ScalingRow:
    throughput = estimate(list(by_round.values()))
    speed_up = ratio(by_round, base) if np != base_np else Estimate(mean=1, low=None, high=None)
    efficiency = speed_up.times(base_np / np) if speed_up is not None else None
    return ScalingRow(
        np=np,
        runs=len(by_round),
        **as_columns("throughput", throughput),
        **as_columns("speed_up", speed_up),
        **as_columns("scaling_efficiency", efficiency),
    )


def scaling_table(document: ScalingDocument) -> TableModel:
    """A row for each np."""
    work = "each rank has the same work" if document.scaling == "weak" else "all ranks together have the same work"
    sources = dict.fromkeys(SOURCES[run.source] for run in document.runs if run.source)
    return TableModel(
        title=f"{Path(document.folder).name}: {document.scaling} scaling, {work}",
        columns=[
            *("np", "runs", document.unit or "throughput", "interval", "speed-up", "interval"),
            *("efficiency", "interval"),
        ],
        groups={"": [_cells(row) for row in document.rows]},
        caption=[
            f"throughput of all ranks, from {', '.join(sources)}",
            f"speed-up over np {document.base_np}, round by round; efficiency in percent",
            f"intervals: {document.confidence:.0%}, over fresh starts",
        ],
    )


def _cells(row: ScalingRow) -> list[str]:
    efficiency = (row.scaling_efficiency, row.scaling_efficiency_low, row.scaling_efficiency_high)
    mean, low, high = (None if part is None else 100 * part for part in efficiency)
    return [
        str(row.np),
        str(row.runs),
        human_number(row.throughput, 4),
        human_interval(row.throughput_low, row.throughput_high, 4),
        human_number(row.speed_up),
        human_interval(row.speed_up_low, row.speed_up_high),
        human_number(mean),
        human_interval(low, high),
    ]
