"""Measurements of a command under several settings and on several numbers of ranks, interleaved:
throughput, scaling efficiency, time in messages, and what a registration cache would hit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, PositiveInt, model_validator

from hvscale.bench.experiments.entries import Entry, InterleavedMeasurement, LaunchContext, register
from hvscale.bench.experiments.entries.command import JOB, THROUGHPUT, message_seconds
from hvscale.bench.experiments.series import CACHE_HITS, EFFICIENCY, Key, Series, Unavailable, Unit, Value
from hvscale.core.errors import ConflictError, RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import as_columns, estimate, student
from hvscale.core.suggest import suggest_name
from hvscale.core.units import human_bytes, human_interval, human_number, human_range, human_seconds
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.buffer_reuse import hit_rates
from hvscale.profiling.compare import Comparison
from hvscale.report.tables import TableModel
from hvscale.studies.comparison.placements import options_of_each
from hvscale.studies.comparison.study import ComparisonDocument, ComparisonStudy
from hvscale.studies.document import ResultSource

ALLREDUCE = "allreduce"
# Shorter messages are usually copied into buffers that the library has registered for good.
REGISTERED_BYTES = 16 << 10
CACHE_ENTRIES = 8192  # of one rank, at least: MVAPICH2's MV2_NDREG_ENTRIES, 8192 + 2 np
PERCENT = 100
NO_GPU = "the command keeps its gradients in host memory: CUDA IPC and NCCL need GPUs"


class SettingsVariant(BaseModel):
    """A combination of settings, placement and number of ranks."""

    settings: str
    placement: str
    np: int


class VariantRow(BaseModel):
    """One variant: means over its runs with 95 % intervals, None if unknown.

    `throughput`: of all ranks. `scaling_efficiency`: a rank's share of the throughput, over that on
    the smallest np of the same settings, round by round. `allreduce_seconds`: as in `messages`.
    `hit_rate`: as in `hit_rates`.
    """

    settings: str
    placement: str
    np: int
    source: ResultSource
    runs: int
    throughput: float | None
    throughput_low: float | None
    throughput_high: float | None
    scaling_efficiency: float | None
    scaling_efficiency_low: float | None
    scaling_efficiency_high: float | None
    allreduce_seconds: float | None
    hit_rate: float | None


class SettingsDocument(ComparisonDocument):
    """bench-settings.json or bench-replay.json in the measurement's folder.

    `variants`: by name. `unavailable`: reasons by settings. `recordings`: the folders of the
    recorded jobs that were replayed, by settings. `record`: their launch options, and
    `replay_options`: those of `hvscale replay`; empty without a replay. `messages`:
    `message_seconds` by run folder.
    `hit_rates`: of a cache of CACHE_ENTRIES buffers, by run folder; None without messages of
    REGISTERED_BYTES or more.
    """

    schema_: Literal["hvscale/bench-settings/1"] = "hvscale/bench-settings/1"
    source: ResultSource
    variants: dict[str, SettingsVariant]
    unavailable: dict[str, str] = {}
    recordings: dict[str, str] = Field(default_factory=dict)
    record: dict[str, LaunchOptions] = Field(default_factory=dict)
    replay_options: list[str] = []
    messages: dict[str, dict[str, float]] = Field(default_factory=dict)
    hit_rates: dict[str, float | None] = Field(default_factory=dict)
    rows: list[VariantRow] = Field(default_factory=list)

    def read_profile(self, run: RunFolder) -> None:
        self.messages[run.path.name] = message_seconds(run)
        self.hit_rates[run.path.name] = hit_rate(run)

    def tabulate(self) -> None:
        self.rows = [self._row(name, variant) for name, variant in self.variants.items() if self.folders(name)]

    def _row(self, name: str, variant: SettingsVariant) -> VariantRow:
        throughput = list(self.measured(name, "throughput").values())
        efficiency = student(list(self.efficiency(name).values())) if self.efficiency(name) else (None, None, None)
        allreduce = list(self.seconds(name).get(ALLREDUCE, {}).values())
        hits = list(self.hits(name).values())
        return VariantRow(
            **variant.model_dump(),
            source=self.source,
            runs=len(self.folders(name)),
            **as_columns("throughput", estimate(throughput) if throughput else None),
            scaling_efficiency=efficiency[0],
            scaling_efficiency_low=efficiency[1],
            scaling_efficiency_high=efficiency[2],
            allreduce_seconds=estimate(allreduce).mean if allreduce else None,
            hit_rate=float(np.mean(hits)) if hits else None,
        )

    def folders(self, name: str) -> dict[int, str]:
        """The folders of the finished runs of a variant, by round."""
        return {run.repeat: run.folder for run in self.runs if run.name == name and run.problem is None}

    def seconds(self, name: str) -> dict[str, dict[int, float]]:
        """Seconds by operation and round: of the whole job, per image, and in messages."""
        throughput = self.measured(name, "throughput")
        found = {JOB: self.measured(name, "seconds"), THROUGHPUT: {one: 1 / each for one, each in throughput.items()}}
        for repeat, folder in self.folders(name).items():
            for operation, seconds in self.messages.get(folder, {}).items():
                if seconds > 0:
                    found.setdefault(operation, {})[repeat] = seconds
        return {operation: seconds for operation, seconds in found.items() if seconds}

    def efficiency(self, name: str) -> dict[int, float]:
        """Scaling efficiency by round; empty for the smallest np."""
        variant = self.variants[name]
        peers = {
            one.np: other
            for other, one in self.variants.items()
            if (one.settings, one.placement) == (variant.settings, variant.placement)
        }
        base = min(peers)
        if variant.np == base:
            return {}
        alone = self.measured(peers[base], "throughput")
        together = self.measured(name, "throughput")
        return {one: together[one] / alone[one] * base / variant.np for one in sorted(together.keys() & alone.keys())}

    def hits(self, name: str) -> dict[int, float]:
        """The cache's hit rate by round."""
        found = {repeat: self.hit_rates.get(folder) for repeat, folder in self.folders(name).items()}
        return {repeat: rate for repeat, rate in found.items() if rate is not None}


def hit_rate(run: RunFolder) -> float | None:
    """The share of messages of REGISTERED_BYTES or more whose buffer a registration cache would
    hold.
    """
    events = read_recording(run).load()
    if not events.detailed:
        return None
    order = np.argsort(events.start_ns, kind="stable")
    order = order[events.bytes[order] >= REGISTERED_BYTES]
    [rate] = hit_rates(events.rank[order].astype(np.int64), events.buffer[order], events.bytes[order], (CACHE_ENTRIES,))
    return rate.hit_rate


class SettingsStudy(ComparisonStudy[SettingsDocument]):
    """Runs a command in every variant once a round."""

    verb = "bench settings"

    def compared(self) -> list[tuple[str, str]]:
        """The first settings with each of the others, on each placement and np."""
        variants = self.document.variants
        first = {(one.placement, one.np): name for name, one in reversed(variants.items())}
        pairs = [(first[one.placement, one.np], name) for name, one in variants.items() if one.np > 1]
        return [(baseline, name) for baseline, name in pairs if baseline != name]


class VariantsEntry(Entry):
    """What is measured under several settings.

    `program`: the command's name in claims. `settings`: names of `hvscale compare-settings`; those
    that this machine's libraries lack are left out, with the reason. `set`: further knobs of some
    of the settings, as for --set. `np`: numbers of ranks; the smallest is the base of the scaling
    efficiency. `nodes`: with fewer ranks, each rank has its own node. `device`: where the command
    keeps its gradients, for claims.
    """

    source: ClassVar[ResultSource]
    program: str
    command: Annotated[list[str], Field(min_length=1)]
    settings: Annotated[list[str], Field(min_length=1)]
    set: dict[str, list[str]] = {}
    np: Annotated[list[PositiveInt], Field(min_length=1)]
    device: Literal["cpu", "cuda"] = "cpu"
    metric: str | None = None
    repeat: PositiveInt = 3

    @model_validator(mode="after")
    def _check_set(self) -> Self:
        if unknown := self.set.keys() - set(self.settings):
            raise ValueError(f"set: {', '.join(sorted(unknown))} is not one of the settings of this measurement")
        return self

    def jobs(self, path: Path, launch: LaunchContext, command: list[str]) -> "Jobs":
        """The launch of every variant. Raises RequestError for an invalid request."""
        jobs = Jobs()
        for name in self.settings:
            if name not in launch.settings:
                raise RequestError(f"settings: {name}: {suggest_name('settings', name, launch.settings)}")
            for np_ in sorted(set(self.np)):
                try:
                    self.add(jobs, SettingsVariant(settings=name, placement="", np=np_), path, launch, command)
                except UnsupportedError as error:
                    jobs.unavailable[name] = str(error)
        if not jobs.launch:
            raise RequestError("; ".join(jobs.unavailable.values()))
        return jobs

    def placements(self, launch: LaunchContext, np_: int) -> tuple[dict[str, PlacementOptions], list[str]]:
        """As `options_of_each`, with at most a node for each rank."""
        asked = launch.options.placement
        if asked.nodes is not None and asked.nodes > np_:
            asked = asked.model_copy(update={"nodes": np_})
        return options_of_each(list(self.placement), asked, np_)

    def add(
        self, jobs: "Jobs", variant: SettingsVariant, path: Path, launch: LaunchContext, command: list[str]
    ) -> None:
        """Add a variant in every placement.

        Raises UnsupportedError if the job's libraries do not support its settings, and
        ConflictError if the launch options or `set` ask for other values.
        """
        placements, warnings = self.placements(launch, variant.np)
        jobs.warnings += [text for text in warnings if text not in jobs.warnings]
        for placement, placed in placements.items():
            more = self.set.get(variant.settings, [])
            options = launch.options.replace(np=variant.np, run=path, placement=placed)
            resolved = launch.resolve(command, options.replace(set=(*options.set, *more)))
            try:
                applied = launch.settings[variant.settings](command, resolved)
            except ConflictError:
                raise
            except RequestError as error:
                raise UnsupportedError(str(error)) from error
            name = f"{placement}, {variant.settings}, np {variant.np}"
            jobs.variants[name] = variant.model_copy(update={"placement": placement})
            jobs.launch[name] = applied.replace(set=tuple(dict.fromkeys((*resolved.set, *applied.set))))

    def measure_with(
        self, kind: Callable[..., "SettingsStudy"], verb: str, path: Path, launch: LaunchContext, command: list[str]
    ) -> "SettingsMeasurement":
        jobs = self.jobs(path, launch, command)

        def document(**fields: Any) -> SettingsDocument:
            return SettingsDocument(**fields, source=self.source, variants=jobs.variants, unavailable=jobs.unavailable)

        study = kind(
            verb,
            document,
            jobs.launch,
            command,
            repeats=self.repeat,
            metric=self.metric,
            bins="study",
            folder_name=lambda name: name.replace(", ", "-").replace(":", "-").replace(" ", "-"),
            hooks=launch.hooks,
        )
        study.document.warnings += jobs.warnings
        return SettingsMeasurement(study, self.program, self.device)


class UnsupportedError(RequestError):
    """The job's libraries do not support the settings."""


@dataclass
class Jobs:
    """The launch options of the variants and the variants, by name; the settings that are
    unavailable with the reason.
    """

    launch: dict[str, LaunchOptions] = field(default_factory=dict)
    variants: dict[str, SettingsVariant] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@register
class SettingsEntry(VariantsEntry):
    """A command under several settings."""

    source: ClassVar[ResultSource] = "measured"
    measure: Literal["settings"]

    def measurement(self, path: Path, launch: LaunchContext) -> "SettingsMeasurement":
        return self.measure_with(SettingsStudy, SettingsStudy.verb, path, launch, self.command)


class SettingsMeasurement(InterleavedMeasurement[SettingsStudy]):
    """`program`, `device`: labels of all series."""

    def __init__(self, study: SettingsStudy, program: str, device: str) -> None:
        super().__init__(study)
        self.program, self.device = program, device

    def series(self) -> list[Series]:
        document = self.study.document
        return [
            Series(self.labels(variant, operation), values, "geometric mean", unit)
            for name, variant in document.variants.items()
            for operation, unit, values in measured(document, name)
        ]

    def labels(self, variant: SettingsVariant, operation: str) -> dict[Key, Value]:
        return {
            "program": self.program,
            "settings": variant.settings,
            "source": self.study.document.source,
            "operation": operation,
            "placement": variant.placement,
            "np": variant.np,
            "device": self.device,
        }

    def unavailable(self) -> list[Unavailable]:
        document = self.study.document
        found = [
            Unavailable("settings", {"program": self.program, "settings": name, "device": self.device}, reason)
            for name, reason in document.unavailable.items()
        ]
        if self.device == "cpu":
            found.append(Unavailable("device", {"program": self.program, "device": "cuda"}, NO_GPU))
        return found

    def tables(self) -> list[TableModel]:
        document = self.study.document
        if not document.rows:
            return []
        shown = [scaling_table(f"{self.program}: {document.source}", document.rows, document.unavailable)]
        return shown + [breakdown_table(self.program, document, one) for one in document.profiles]


def measured(document: SettingsDocument, name: str) -> list[tuple[str, Unit, dict[int, float]]]:
    """The operations of a variant that have values."""
    found: list[tuple[str, Unit, dict[int, float]]] = [
        *((operation, "seconds", values) for operation, values in document.seconds(name).items()),
        (EFFICIENCY, "share", document.efficiency(name)),
        (CACHE_HITS, "share", document.hits(name)),
    ]
    return [one for one in found if one[2]]


def scaling_table(title: str, rows: Sequence[VariantRow], unavailable: Mapping[str, str]) -> TableModel:
    """A row for each number of ranks, by settings."""
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        low, high = row.scaling_efficiency_low, row.scaling_efficiency_high
        groups.setdefault(f"{row.settings}, {row.placement}", []).append(
            [
                str(row.np),
                str(row.runs),
                human_number(row.throughput, 4),
                human_interval(row.throughput_low, row.throughput_high, 4),
                percent(row.scaling_efficiency),
                "-" if low is None or high is None else f"{percent(low)} to {percent(high)}",
                "-" if row.allreduce_seconds is None else human_seconds(row.allreduce_seconds),
                percent(row.hit_rate),
            ]
        )
    return TableModel(
        title=title,
        columns=["np", "runs", "images/s", "interval", "efficiency %", "interval", "all-reduce", "cache hits %"],
        groups=groups,
        caption=[
            "all-reduce: seconds of the slowest rank in the whole job; intervals: 95%, over fresh starts",
            f"cache hits: messages of {human_bytes(REGISTERED_BYTES)} or more whose buffer a cache of {CACHE_ENTRIES} buffers holds",
            *(f"{name} is not available: {reason}" for name, reason in unavailable.items()),
        ],
    )


def percent(share: float | None) -> str:
    return "-" if share is None else f"{PERCENT * share:.1f}"


def breakdown_table(program: str, document: SettingsDocument, profile: Comparison) -> TableModel:
    """All-reduce by message size before and after, per step and summed over ranks."""
    before, after = (
        next((run.name for run in document.runs if run.folder == Path(folder).name), Path(folder).name)
        for folder in (profile.run_before, profile.run_after)
    )
    rows = [
        [
            human_range(row.bytes_min, row.bytes_max),
            f"{row.calls_before:.3g}",
            f"{row.calls_after:.3g}",
            human_seconds(row.seconds_before),
            human_seconds(row.seconds_after),
            "-" if row.gain_percent is None else f"{row.gain_percent:+.1f}",
        ]
        for row in profile.rows
        if row.operation == ALLREDUCE
    ]
    return TableModel(
        title=f"{program}: {before} against {after}, {document.source}",
        columns=["all-reduce", "calls", "after", "time", "after", "saved %"],
        groups={"": rows},
        caption=[f"per {profile.per}, summed over ranks, with Horovod's coordination"],
    )
