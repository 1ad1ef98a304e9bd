"""Measurements with `hvscale bench param-server`."""

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from hvscale.bench.collectives.memory import OPERATIONS
from hvscale.bench.experiments.entries import Entry, InterleavedMeasurement, LaunchContext, comma_list, register
from hvscale.bench.experiments.series import Key, Series, Value
from hvscale.bench.param_server.study import ParamServerOptions, ParamServerStudy


@register
class ParamServerEntry(Entry):
    """The options of the command, with the same names."""

    measure: Literal["param-server"]
    backend: list[str]
    workers: list[PositiveInt]
    operation: tuple[str, ...] = tuple(OPERATIONS)
    bytes: str = "1G"
    dtype: str = "float32"
    device: str = "cpu"
    path: tuple[str, ...] = ()
    repeat: PositiveInt = 3
    iterations: PositiveInt = 10
    warmup: NonNegativeInt = 1

    def measurement(self, path: Path, launch: LaunchContext) -> "ParamServerMeasurement":
        options = ParamServerOptions(
            backends=tuple(self.backend),
            paths=self.path,
            operations=comma_list(self.operation),
            workers=comma_list(self.workers),
            size=self.bytes,
            dtype=self.dtype,
            device=self.device,
            repeats=self.repeat,
            iterations=self.iterations,
            warmup=self.warmup,
        )
        return ParamServerMeasurement(ParamServerStudy.of(options, launch.options, path, launch.resolve))


class ParamServerMeasurement(InterleavedMeasurement[ParamServerStudy]):
    def series(self) -> list[Series]:
        document = self.study.document
        found = []
        for variant in document.variants():
            seconds = {run.repeat: run.mean for run in document.runs if run.variant == variant and run.problem is None}
            labels: dict[Key, Value] = {
                "operation": variant.operation,
                "backend": variant.backend,
                "placement": variant.placement,
                "workers": variant.workers,
                "dtype": document.dtype,
                "device": document.device,
                "bytes": document.bytes,
            }
            if seconds:
                found.append(Series(labels, seconds, "geometric mean"))
        return found
