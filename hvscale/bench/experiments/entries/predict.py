"""Predictions from the runs of a `replay` measurement of the same part, by `hvscale predict`."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, PositiveInt, ValidationError, model_validator

from hvscale.bench.experiments.entries import Entry, LaunchContext, MeasurementDefaults, comma_list, register
from hvscale.bench.experiments.entries.command import THROUGHPUT
from hvscale.bench.experiments.entries.replay import ReplayEntry
from hvscale.bench.experiments.entries.settings import SettingsDocument, SettingsEntry, percent
from hvscale.bench.experiments.series import EFFICIENCY, Key, PredictedInterval, Series, Unit, Value
from hvscale.core.documents import VersionedDocument, from_json, to_json
from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.files import read_text
from hvscale.core.run_folder import Host, write_text
from hvscale.core.units import human_interval, human_number
from hvscale.report.tables import TableModel
from hvscale.studies.base import Warn
from hvscale.studies.document import ResultSource
from hvscale.studies.interleaved import ProgressReporter

# A process of its own, because a benchmark does not depend on the model behind the prediction.
# -P: as `hvscale` itself, without the modules in the working folder.
PREDICT = [sys.executable, "-P", "-c", "import sys; from hvscale.cli.main import main; sys.exit(main())", "predict"]
DOCUMENT = "bench-predict.json"
# Keys of every entry that only runs have.
OF_RUNS = ("placement", "nodes", "link", "repeat")
# Options that the experiment gives itself.
OWN_OPTIONS = ("-np", "--np", "--run", "--json")


class PredictedRowExcerpt(BaseModel):
    """One number of ranks of a prediction: the fields that an experiment uses."""

    np: int
    source: ResultSource
    extrapolation: float
    scaling_efficiency: float
    scaling_efficiency_low: float | None
    scaling_efficiency_high: float | None
    images_per_second: float | None
    images_per_second_low: float | None
    images_per_second_high: float | None

    @property
    def is_predicted(self) -> bool:
        """Whether it is not one of the runs that the prediction starts from."""
        return self.source in ("predicted", "documented")


class Prediction(VersionedDocument):
    """What `hvscale predict --json` prints: the fields that an experiment uses."""

    schema_: Literal["hvscale/predict/1"]
    network: str
    confidence: float
    warnings: list[str]
    rows: list[PredictedRowExcerpt]


class PredictDocument(VersionedDocument):
    """bench-predict.json in the measurement's folder: the predictions by settings, and the commands
    that made them.

    `request`: the fields of the entry that the predictions depend on.
    """

    schema_: Literal["hvscale/bench-predict/1"] = "hvscale/bench-predict/1"
    request: dict[str, Any] = {}
    commands: dict[str, list[str]] = {}
    predictions: dict[str, Prediction] = {}


@register
class PredictEntry(Entry):
    """Throughput and efficiency on numbers of ranks that were not run.

    `of`: the name of a `replay` measurement, whose recording and replays the prediction starts
    from. `alone`: of a `settings` measurement of the same command, whose runs on one rank show how
    much messages slow computing down. `np`: numbers of ranks. `flags`: further options of `hvscale
    predict`. `program` and `device`: for claims.
    """

    measure: Literal["predict"]
    program: str
    of: str
    alone: str | None = None
    np: Annotated[list[PositiveInt], Field(min_length=1)]
    flags: list[str] = []
    device: Literal["cpu", "cuda"] = "cpu"
    repeat: PositiveInt = 1

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if given := [key for key in OF_RUNS if key in self.model_fields_set]:
            raise ValueError(
                f"{', '.join(given)}: a prediction starts no ranks; for another network write "
                'flags = ["--link", "10gbit"]'
            )
        if given := [flag for flag in self.flags if flag.partition("=")[0] in OWN_OPTIONS]:
            raise ValueError(f"flags: {', '.join(given)}: the experiment gives it itself; leave it out")
        return self

    def check_part(self, part: Mapping[str, Entry]) -> None:
        replays = {name: entry for name, entry in part.items() if isinstance(entry, ReplayEntry)}
        if self.of not in replays:
            give = f"; give {' or '.join(replays)}" if replays else ""
            raise RequestError(f"of: {self.of} is not a replay of this part{give}")
        if self.alone is None:
            return
        measured, command = part.get(self.alone), replays[self.of].command
        if not isinstance(measured, SettingsEntry) or measured.command != command or 1 not in measured.np:
            raise RequestError(f"alone: {self.alone} does not measure the command of {self.of} on one rank")

    def measurement(self, path: Path, launch: LaunchContext) -> "PredictMeasurement":
        if self.flags:
            check_options(["--np", comma_list(self.np), *self.flags])
        return PredictMeasurement(self, path)


class PredictMeasurement(MeasurementDefaults):
    """The predictions of one entry. They take seconds, so a resumed experiment makes them again.

    Until it does, those of the earlier call are shown.
    """

    starts, repeats = 1, 1
    host: Host | None = None
    replay_file: ClassVar[str] = "bench-replay.json"
    settings_file: ClassVar[str] = "bench-settings.json"

    def __init__(self, entry: PredictEntry, path: Path) -> None:
        self.entry, self.path, self.file = entry, path, path / DOCUMENT
        self.document = PredictDocument(request=entry.model_dump(include={"of", "alone", "np", "flags"}))

    @property
    def is_complete(self) -> bool:
        try:
            return self.document.commands == self.commands()
        except UntrustedError:
            return False

    def resume(self, warn: Warn) -> None:
        try:
            previous = from_json(PredictDocument, read_text(self.file))
        except (OSError, ValueError):
            return
        if previous.request == self.document.request:
            self.document = previous
            for settings, found in previous.predictions.items():
                warn_about(settings, found, warn)

    def measure(self, progress: ProgressReporter, warn: Warn) -> None:
        """Predict under each of the settings that were replayed.

        Raises UntrustedError if there is no replay, or if `hvscale predict` refuses.
        """
        commands = self.commands()
        self.path.mkdir(parents=True, exist_ok=True)
        for settings, command in commands.items():
            progress.starting(settings, 1)
            shutil.rmtree(self.result(settings), ignore_errors=True)  # of an earlier call, with fewer replays
            try:
                found = predict(command[2:])
            except UntrustedError:
                self.document.predictions.pop(settings, None)  # of an earlier call
                raise
            self.document.commands[settings], self.document.predictions[settings] = command, found
            write_text(self.file, to_json(self.document) + "\n")
            warn_about(settings, found, warn)
            progress.measured(settings, 1, found.rows[-1].images_per_second, f"images/s on {found.rows[-1].np} ranks")

    def commands(self) -> dict[str, list[str]]:
        """The command that predicts from the runs so far, by settings.

        Raises UntrustedError if there are none.
        """
        folder = self.path.parent / self.entry.of
        try:
            replays = from_json(SettingsDocument, read_text(folder / self.replay_file))
        except (OSError, ValueError) as error:
            raise UntrustedError(f"{folder} has no replays to predict from: measure {self.entry.of} first") from error
        asked = ["--np", comma_list(self.entry.np), *self.entry.flags]
        return {
            settings: [
                *("hvscale", "predict", *inputs(folder, replays, settings), *self.runs_alone(settings)),
                *(*asked, "--run", str(self.result(settings)), "--json"),
            ]
            for settings in replays.recordings
        }

    def result(self, settings: str) -> Path:
        """The folder of a prediction."""
        return self.path / f"prediction-{settings}"

    def runs_alone(self, settings: str) -> list[str]:
        """The finished runs of the job on one rank under these settings."""
        if self.entry.alone is None:
            return []
        folder = self.path.parent / self.entry.alone
        try:
            measured = from_json(SettingsDocument, read_text(folder / self.settings_file))
        except (OSError, ValueError) as error:
            raise UntrustedError(f"{folder} has no runs on one rank: measure {self.entry.alone} first") from error
        return [str(folder / run) for run in runs_of(measured, settings, lambda np: np == 1)]

    def series(self) -> list[Series]:
        return [
            one
            for settings, prediction in self.document.predictions.items()
            for row in prediction.rows
            if row.is_predicted
            for one in self.series_of(settings, row, prediction.confidence)
        ]

    def series_of(self, settings: str, row: PredictedRowExcerpt, confidence: float) -> list[Series]:
        """Efficiency, and seconds per image if the images are known."""
        labels: dict[Key, Value] = {
            "program": self.entry.program,
            "settings": settings,
            "source": row.source,
            "np": row.np,
            "device": self.entry.device,
        }

        def series(operation: str, unit: Unit, value: float, low: float | None, high: float | None) -> Series:
            known = low is not None and high is not None
            interval = PredictedInterval(low or 0, high or 0, confidence) if known else None
            return Series({**labels, "operation": operation}, {1: value}, "geometric mean", unit, interval)

        limits = row.scaling_efficiency_low, row.scaling_efficiency_high
        found = [series(EFFICIENCY, "share", row.scaling_efficiency, *limits)]
        if row.images_per_second:
            low, high = (1 / one if one else None for one in (row.images_per_second_high, row.images_per_second_low))
            found.append(series(THROUGHPUT, "seconds", 1 / row.images_per_second, low, high))
        return found

    def tables(self) -> list[TableModel]:
        predictions = self.document.predictions
        if not predictions:
            return []
        networks = dict.fromkeys(prediction.network for prediction in predictions.values())
        confidence = min(prediction.confidence for prediction in predictions.values())
        return [
            TableModel(
                title=f"{self.entry.program}: predicted from {self.entry.of}",
                columns=["np", "source", "x", "images/s", "interval", "efficiency %", "interval"],
                groups={settings: [cells(row) for row in one.rows] for settings, one in predictions.items()},
                caption=[
                    f"x: np over the largest measured np; intervals: {confidence:.0%}; network: {', '.join(networks)}"
                ],
            )
        ]


def warn_about(settings: str, prediction: Prediction, warn: Warn) -> None:
    for text in prediction.warnings:
        warn(f"{settings}: {text}")


def inputs(folder: Path, replays: SettingsDocument, settings: str) -> list[str]:
    """The runs to predict from: the recording, and the finished replays under these settings."""
    runs = runs_of(replays, settings, lambda np: np > 1)
    return [str(folder / one) for one in (replays.recordings[settings], *runs)]


def runs_of(document: SettingsDocument, settings: str, has_np: Callable[[int], bool]) -> list[str]:
    """The folders of the finished runs under these settings on such numbers of ranks."""
    variants = document.variants.items()
    names = [name for name, variant in variants if variant.settings == settings and has_np(variant.np)]
    return [run for name in names for run in document.folders(name).values()]


def check_options(options: Sequence[str]) -> None:
    """Raises RequestError for options and values that `hvscale predict` refuses whatever the runs.

    A file that an option names must exist.
    """
    # First, because the last option might take it as its value.
    done = subprocess.run([*PREDICT, "--check-options", ".", *options], capture_output=True, text=True)
    if done.returncode != 0:
        raise RequestError(f"flags: hvscale predict: {refusal(done)}")


def predict(arguments: Sequence[str]) -> Prediction:
    """The document of `hvscale predict`. Raises UntrustedError with its message if it refuses."""
    done = subprocess.run([*PREDICT, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise UntrustedError(f"hvscale predict: {refusal(done)}")
    try:
        return from_json(Prediction, done.stdout)
    except ValidationError as error:
        raise UntrustedError(f"hvscale predict printed an invalid document: {error.errors()[0]['msg']}") from error


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a command that failed, or its exit status."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].removeprefix("hvscale: ") if lines else str(done.returncode)


def cells(row: PredictedRowExcerpt) -> list[str]:
    low, high = row.scaling_efficiency_low, row.scaling_efficiency_high
    return [
        str(row.np),
        row.source,
        human_number(row.extrapolation),
        human_number(row.images_per_second, 4),
        human_interval(row.images_per_second_low, row.images_per_second_high, 4),
        percent(row.scaling_efficiency),
        "-" if low is None or high is None else f"{percent(low)} to {percent(high)}",
    ]
