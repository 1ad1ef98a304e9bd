"""Any command, profiled, in each placement and with each of its collectives in turns: what it
trains, and the time of its messages.
"""

import itertools
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, PositiveInt

from hvscale.bench.experiments.entries import Launching, MeasurementInTurns, WithTable, by, register
from hvscale.bench.experiments.series import Key, Series, Value
from hvscale.core.run_folder import Host, RunFolder
from hvscale.core.statistics import as_columns, estimate
from hvscale.profiling.analyze.breakdown import breakdown
from hvscale.studies.comparison import ComparisonDocument, ComparisonStudy
from hvscale.studies.placement_comparison.study import options_of_each

JOB, THROUGHPUT = "job", "throughput"


class CommandRow(BaseModel):
    """The geometric mean of an operation's seconds over the runs of one name, with its 95 %
    interval; None with one run.
    """

    name: str
    operation: str
    runs: int
    seconds: float
    seconds_low: float | None
    seconds_high: float | None


class CommandDocument(ComparisonDocument):
    """bench-command.json in the measurement's folder. `messages`: by a run's folder the seconds of
    each operation, as `message_seconds`.
    """

    schema_: Literal["hvscale/bench-command/1"] = "hvscale/bench-command/1"
    messages: dict[str, dict[str, float]] = Field(default_factory=dict)
    rows: list[CommandRow] = Field(default_factory=list)

    def tabulate(self) -> None:
        for turn in self.runs:
            if turn.problem is None and turn.folder not in self.messages:
                self.messages[turn.folder] = message_seconds(RunFolder(Path(self.folder) / turn.folder))
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
        """Seconds by operation and round: of the whole job, per image where the run reports its
        throughput, and of messages.
        """
        throughput = self.measured(name, "throughput")
        found = {JOB: self.measured(name, "seconds"), THROUGHPUT: {one: 1 / each for one, each in throughput.items()}}
        for turn in self.runs:
            for operation, seconds in self.messages.get(turn.folder, {}).items():
                if turn.name == name and seconds > 0:
                    found.setdefault(operation, {})[turn.repeat] = seconds
        return {operation: seconds for operation, seconds in found.items() if seconds}


def message_seconds(run: RunFolder) -> dict[str, float]:
    """Seconds of the slowest rank in all messages of each operation, without Horovod's messages for
    coordination.
    """
    of_ranks: dict[str, dict[int, float]] = {}
    for row in breakdown(run).rank_rows:
        seconds = of_ranks.setdefault(row.operation, {})
        seconds[row.rank] = seconds.get(row.rank, 0.0) + row.seconds - row.bitwise_seconds
    return {operation: max(seconds.values()) for operation, seconds in of_ranks.items()}


@register
class CommandEntry(WithTable):
    """A user's command. `program`: its name in claims. `metric`: as in `hvscale scale`, to read a
    throughput from its output.
    """

    measure: Literal["command"]
    program: str
    command: Annotated[list[str], Field(min_length=1)]
    np: PositiveInt
    metric: str | None = None
    repeat: PositiveInt = 3

    def measurement(self, path: Path, launch: Launching) -> "CommandMeasurement":
        each, warnings = options_of_each(list(self.placement), launch.options.placement, self.np)
        wheres: dict[str, dict[Key, Value]] = {}
        jobs = {}
        for placement, collectives in itertools.product(self.placement, self.collectives):
            name = f"{placement}, {collectives}"
            wheres[name] = {
                "program": self.program,
                "placement": placement,
                "collectives": collectives,
                "np": self.np,
            }
            asked = launch.options.replace(np=self.np, run=path, placement=each[placement])
            jobs[name] = launch.resolve(self.command, by(collectives, asked))
        turns = ComparisonStudy(
            "bench command",
            CommandDocument,
            jobs,
            self.command,
            repeats=self.repeat,
            metric=self.metric,
            bins="study",
            # A colon in a folder's name would end it, for Docker's mounts and for LD_PRELOAD.
            label=lambda name: name.replace(", ", "-").replace(":", "-"),
            hooks=launch.hooks,
        )
        turns.document.warnings += warnings
        return CommandMeasurement(turns, wheres)


class CommandMeasurement(MeasurementInTurns[ComparisonStudy[CommandDocument]]):
    """`wheres`: the keys of the series of each name."""

    def __init__(self, turns: ComparisonStudy[CommandDocument], wheres: dict[str, dict[Key, Value]]) -> None:
        super().__init__(turns)
        self.wheres = wheres

    @property
    def host(self) -> Host | None:
        done = next((turn for turn in self.study.document.runs if turn.problem is None), None)
        return RunFolder(self.path / done.folder).read().host if done is not None else None

    def series(self) -> list[Series]:
        document = self.study.document
        return [
            Series({**where, "operation": operation}, seconds, "geometric mean")
            for name, where in self.wheres.items()
            for operation, seconds in document.seconds(name).items()
        ]
