"""scale.json: the runs that were made, and the table over them."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from hvscale.core.run_folder import Library
from hvscale.core.statistics import Estimate, as_columns, estimate, ratio
from hvscale.launch.options import LaunchOptions
from hvscale.studies.document import InterleavedDocument
from hvscale.studies.scaling.work import Scaling
from hvscale.studies.throughput import Source


class ScalingRun(BaseModel):
    """One start of the command. `throughput`: of all ranks together; None where it failed, and
    `problem` says why.
    """

    np: int
    repeat: int
    folder: str
    throughput: float | None = None
    source: Source | None = None
    threads_per_rank: int | None = None
    problem: str | None = None


class ScalingRow(BaseModel):
    """One np: geometric means over its runs with 95 % intervals, None where they are not known.

    `speed_up` is over the base, run by run in the rounds that both finished; `scaling_efficiency`
    is speed-up * base_np / np.
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
    """What `hvscale scale --json` prints, by alias, and the scale folder's scale.json. `unit` is
    that of the throughputs, where it is known.
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
    return [_row(np, of_round, base, base_np) for np, of_round in sorted(measured.items())]


def _row(np: int, of_round: dict[int, float], base: dict[int, float], base_np: int) -> ScalingRow:
    throughput = estimate(list(of_round.values()))
    speed_up = ratio(of_round, base) if np != base_np else Estimate(mean=1, low=None, high=None)
    efficiency = speed_up.times(base_np / np) if speed_up is not None else None
    return ScalingRow(
        np=np,
        runs=len(of_round),
        **as_columns("throughput", throughput),
        **as_columns("speed_up", speed_up),
        **as_columns("scaling_efficiency", efficiency),
    )
