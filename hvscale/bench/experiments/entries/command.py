"""Measurements of any command: its throughput, run time and time in messages, with the placements
and `collectives` interleaved.
"""

import itertools
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, PositiveInt

from hvscale.bench.experiments.entries import (
    InterleavedMeasurement,
    LaunchContext,
    TableEntry,
    register,
    with_collectives,
)
from hvscale.bench.experiments.series import Key, Series, Value
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import as_columns, estimate
from hvscale.profiling.analyze.breakdown import breakdown, require_complete
from hvscale.studies.comparison.placements import options_of_each
from hvscale.studies.comparison.study import ComparisonDocument, ComparisonStudy

JOB, THROUGHPUT = "job", "throughput"


class CommandRow(BaseModel):
    """The seconds of an operation under one name: the geometric mean over the runs with its 95 %
    interval, None for a single run.
    """

    name: str
    operation: str
    runs: int
    seconds: float
    seconds_low: float | None
    seconds_high: float | None


class CommandDocument(ComparisonDocument):
    """bench-command.json in the measurement's folder.

    `messages`: `message_seconds` by run folder, without those of incomplete profiles.
    """

    schema_: Literal["hvscale/bench-command/1"] = "hvscale/bench-command/1"
    messages: dict[str, dict[str, float]] = Field(default_factory=dict)
    rows: list[CommandRow] = Field(default_factory=list)

    def read_profile(self, run: RunFolder) -> None:
        self.messages[run.path.name] = message_seconds(run)

    def tabulate(self) -> None:
        self.rows = [
            CommandRow(
                name=name,
                operation=operation,
                runs=len(seconds),
                **as_columns("seconds", estimate(list(seconds.values()))),
            )
            for name in self.launch
            for operation, seconds in self.seconds(name).items()
        ]

    def seconds(self, name: str) -> dict[str, dict[int, float]]:
        """Seconds by operation and round: of the whole job, per image if the run reports its
        throughput, and in messages.
        """
        throughput = self.measured(name, "throughput")
        found = {JOB: self.measured(name, "seconds"), THROUGHPUT: {one: 1 / each for one, each in throughput.items()}}
        for run in self.runs:
            for operation, seconds in self.messages.get(run.folder, {}).items():
                if run.name == name and seconds > 0:
                    found.setdefault(operation, {})[run.repeat] = seconds
        return {operation: seconds for operation, seconds in found.items() if seconds}


def message_seconds(run: RunFolder) -> dict[str, float]:
    """Seconds of the slowest rank in all messages of each operation, without Horovod's coordination
    messages.

    Raises RequestError if no profile can be read, UntrustedError if messages are missing.
    """
    found = breakdown(run)
    require_complete(run, found.incomplete)
    by_rank: dict[str, dict[int, float]] = {}
    for row in found.rank_rows:
        seconds = by_rank.setdefault(row.operation, {})
        seconds[row.rank] = seconds.get(row.rank, 0.0) + row.seconds - row.bitwise_seconds
    return {operation: max(seconds.values()) for operation, seconds in by_rank.items()}


@register
class CommandEntry(TableEntry):
    """A user's command. `program`: its name in claims. `metric`: reads the throughput from its
    output, as in `hvscale scale`.
    """

    measure: Literal["command"]
    program: str
    command: Annotated[list[str], Field(min_length=1)]
    np: PositiveInt
    metric: str | None = None
    repeat: PositiveInt = 3

    def measurement(self, path: Path, launch: LaunchContext) -> "CommandMeasurement":
        placements, warnings = options_of_each(list(self.placement), launch.options.placement, self.np)
        labels: dict[str, dict[Key, Value]] = {}
        jobs = {}
        for placement, collectives in itertools.product(self.placement, self.collectives):
            name = f"{placement}, {collectives}"
            labels[name] = {
                "program": self.program,
                "placement": placement,
                "collectives": collectives,
                "np": self.np,
            }
            options = launch.options.replace(np=self.np, run=path, placement=placements[placement])
            jobs[name] = launch.resolve(self.command, with_collectives(collectives, options))
        study = ComparisonStudy(
            "bench command",
            CommandDocument,
            jobs,
            self.command,
            repeats=self.repeat,
            metric=self.metric,
            bins="study",
            # No colons, which separate paths in Docker's mounts and in LD_PRELOAD.
            folder_name=lambda name: name.replace(", ", "-").replace(":", "-"),
            hooks=launch.hooks,
        )
        study.document.warnings += warnings
        return CommandMeasurement(study, labels)


class CommandMeasurement(InterleavedMeasurement[ComparisonStudy[CommandDocument]]):
    """`labels`: of the series of each name."""

    def __init__(self, study: ComparisonStudy[CommandDocument], labels: dict[str, dict[Key, Value]]) -> None:
        super().__init__(study)
        self.labels = labels

    def series(self) -> list[Series]:
        document = self.study.document
        return [
            Series({**labels, "operation": operation}, seconds, "geometric mean")
            for name, labels in self.labels.items()
            for operation, seconds in document.seconds(name).items()
        ]
