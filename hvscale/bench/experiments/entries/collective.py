"""Measurements with `hvscale bench COLLECTIVE`: each np, dtype and placement on all back ends, in
rounds.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from hvscale.bench.collectives import backends
from hvscale.bench.collectives.controller import CollectiveBench, CollectiveOptions, wrong_result_message
from hvscale.bench.collectives.document import BenchDocument, rows_to_compare
from hvscale.bench.collectives.request import DEFAULT_ITERATIONS, DEFAULT_WARMUP
from hvscale.bench.experiments.entries import (
    CollectivesChoice,
    LaunchContext,
    MeasurementDefaults,
    TableEntry,
    register,
    with_collectives,
)
from hvscale.bench.experiments.series import Key, Series, Value
from hvscale.core.documents import from_json
from hvscale.core.errors import HvscaleError, RequestError, UntrustedError
from hvscale.core.files import read_text
from hvscale.core.run_folder import Host, RunFolder
from hvscale.core.units import human_bytes
from hvscale.launch import flavours
from hvscale.launch.controller import RunInterruptedError
from hvscale.studies.base import Period, Warn, difference, long_pauses, other_library, other_machine
from hvscale.studies.comparison.placements import options_of_each
from hvscale.studies.interleaved import ProgressReporter

# The fields of the document that a resumed measurement must share with the earlier one.
SAME = ("collective", "dtype", "device", "in_place", "iterations", "warmup", "launch")


@register
class CollectiveEntry(TableEntry):
    """The options of the command, with the same names. A decision table applies only to back ends
    over MPI.
    """

    measure: Literal["collective"]
    collective: str
    backend: Annotated[list[str], Field(min_length=1)]
    np: Annotated[list[PositiveInt], Field(min_length=1)]
    dtype: Annotated[tuple[str, ...], Field(min_length=1)] = ("float32",)
    device: str = "cpu"
    path: tuple[str, ...] = ()
    sizes: str | None = None
    min_bytes: str | None = None
    max_bytes: str | None = None
    step_factor: float | None = None
    iterations: str = DEFAULT_ITERATIONS
    warmup: str = DEFAULT_WARMUP
    in_place: str = "both"
    repeat: PositiveInt = 5

    def measurement(self, path: Path, launch: LaunchContext) -> "CollectiveMeasurement":
        variants = [
            CollectiveVariant(*one) for one in itertools.product(self.np, self.dtype, self.placement, self.collectives)
        ]
        return CollectiveMeasurement(self, path.absolute(), launch, variants)

    def options(self, dtype: str, backends: Sequence[str]) -> CollectiveOptions:
        return CollectiveOptions(
            backends=tuple(backends),
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            step_factor=self.step_factor,
            sizes=self.sizes,
            dtype=dtype,
            device=self.device,
            paths=self.path,
            iterations=self.iterations,
            warmup=self.warmup,
            in_place=self.in_place,
        )


@dataclass(frozen=True)
class CollectiveVariant:
    """What one launch of the benchmark measures."""

    np: int
    dtype: str
    placement: str
    collectives: CollectivesChoice

    def __str__(self) -> str:
        return f"np {self.np}, {self.dtype}, {self.placement}{', table' if self.collectives == 'table' else ''}"


class CollectiveMeasurement(MeasurementDefaults):
    """One entry's measurement. `documents`: the results by variant and round."""

    def __init__(
        self, entry: CollectiveEntry, path: Path, launch: LaunchContext, variants: list[CollectiveVariant]
    ) -> None:
        """Raises RequestError for an invalid request."""
        self.entry, self.path, self.repeats = entry, path, entry.repeat
        self.launch, self.variants = launch, variants
        self.documents: dict[tuple[CollectiveVariant, int], BenchDocument] = {}
        self.first_libraries: dict[str, str] = {}  # by back end
        self.failure: HvscaleError | None = None
        self.warnings: list[str] = []
        benches = [self.bench(variant, next(folders(path, variant, 1, new=True))) for variant in variants]
        self.starts = sum(len(bench.launches) for bench in benches)

    def bench(self, variant: CollectiveVariant, folder: Path) -> CollectiveBench:
        placement = self.launch.options.placement.model_copy(update={"placement": ",".join(self.entry.placement)})
        placements, self.warnings = options_of_each(list(self.entry.placement), placement, variant.np)
        launch = self.launch.options.replace(np=variant.np, run=folder, placement=placements[variant.placement])
        options = self.entry.options(variant.dtype, self.backends(variant))
        return CollectiveBench.of(
            self.entry.collective,
            options,
            with_collectives(variant.collectives, launch),
            self.launch.resolve,
            self.launch.hooks,
        )

    def backends(self, variant: CollectiveVariant) -> list[str]:
        """The back ends that support these collectives. Raises RequestError if there is none."""
        names = self.entry.backend
        if variant.collectives == "library":
            return names
        over_mpi = [
            one.name for one in backends.select(names, self.launch.options.mpi) if flavours.get(one.flavour).has_mpi
        ]
        if not over_mpi:
            raise RequestError(f"--collectives applies to back ends over MPI only; none of {', '.join(names)} is")
        return over_mpi

    @property
    def host(self) -> Host | None:
        return next((document.host for document in self.documents.values() if document.host is not None), None)

    def planned(self) -> list[tuple[CollectiveVariant, int]]:
        """All results, by variant and repeat."""
        return [(variant, repeat) for repeat in range(1, self.repeats + 1) for variant in self.variants]

    @property
    def is_complete(self) -> bool:
        found = [self.documents.get(key) for key in self.planned()]
        return all(one is not None and one.state == "finished" and not one.wrong for one in found)

    def resume(self, warn: Warn) -> None:
        for variant, repeat in self.planned():
            document = self.finished(variant, repeat)
            if document is not None:
                self.documents[variant, repeat] = document

    def measure(self, progress: ProgressReporter, warn: Warn) -> None:
        """Measure what is not in the folder yet.

        A variant that fails is not started again; its error is raised after all others have been
        measured.
        """
        for text in self.warnings:
            warn(text)
        failed: set[CollectiveVariant] = set()
        for repeat in range(1, self.repeats + 1):
            for variant in self.variants:
                if variant in failed:
                    continue
                try:
                    self.measure_one(variant, repeat, progress, warn)
                except (RequestError, RunInterruptedError):
                    raise
                except HvscaleError as error:
                    failed.add(variant)
                    self.failure = self.failure or error
                    warn(f"{variant} failed in repeat {repeat} and is not started again: {error}")
                document = self.documents[variant, repeat]
                for entry in document.backends:
                    rows = [row for row in document.rows if row.backend == entry.name]
                    largest = rows[-1] if rows else None
                    progress.measured(
                        f"{variant}, {entry.name}",
                        repeat,
                        largest.seconds if largest is not None else None,
                        f"s for {human_bytes(largest.bytes)}" if largest is not None else None,
                    )
        self.warn_of_pauses(warn)
        if self.failure is not None:
            raise self.failure

    def warn_of_pauses(self, warn: Warn) -> None:
        rounds: dict[int, list[Period]] = {}
        for (_, repeat), document in self.documents.items():
            for path in (self.path / Path(document.folder).name).glob("*/run.json"):
                with suppress(RequestError):  # a damaged record only hides the pause
                    rounds.setdefault(repeat, []).append(RunFolder(path.parent).read().period)
        if text := long_pauses(rounds):
            warn(text)

    def measure_one(self, variant: CollectiveVariant, repeat: int, progress: ProgressReporter, warn: Warn) -> None:
        """Take over the result of an earlier call, or measure. Raises as `CollectiveBench.measure`,
        for wrong results of an earlier call too.
        """
        document = self.finished(variant, repeat)
        if document is not None:
            self.documents[variant, repeat] = document
            for text in document.warnings:
                warn(text)
            self.warn_about_changes(document, warn)
            if document.wrong:
                raise UntrustedError(wrong_result_message(document))
            return
        bench = self.bench(variant, next(folders(self.path, variant, repeat, new=True)))
        self.documents[variant, repeat] = bench.document
        bench.measure(
            starting=lambda launch: progress.starting(f"{variant}, {launch.entry.name}", repeat),
            measured=lambda row: None,
            warn=warn,
        )
        self.warn_about_changes(bench.document, warn)

    def warn_about_changes(self, document: BenchDocument, warn: Warn) -> None:
        """Warn if the results are from another machine or library version than the first ones."""
        if self.host is not None and document.host is not None and (text := other_machine(self.host, document.host)):
            warn(text)
        for entry in document.backends:
            if entry.library is not None:
                first = self.first_libraries.setdefault(entry.name, entry.library)
                if text := other_library(first, entry.library):
                    warn(text)

    def finished(self, variant: CollectiveVariant, repeat: int) -> BenchDocument | None:
        """The finished result of an earlier call. Raises RequestError if it measured something
        else.
        """
        for folder in folders(self.path, variant, repeat, new=False):
            try:
                document = from_json(BenchDocument, read_text(folder / "bench.json"))
            except (OSError, ValueError):
                continue
            if document.state == "finished":
                self.check_same(variant, document, folder)
                return document
        return None

    def check_same(self, variant: CollectiveVariant, found: BenchDocument, folder: Path) -> None:
        bench = self.bench(variant, folder.with_name(f"{folder.name}-requested"))
        differing = difference(found, bench.document, SAME)
        requested = {(launch.entry.name, size.bytes) for launch in bench.launches for size in launch.request.sizes}
        if requested != {(row.backend, row.bytes) for row in found.rows}:
            differing = differing or "its back ends or sizes differ"
        if differing:
            raise RequestError(f"{folder} holds another study: {differing}; give another folder with --run")

    def series(self) -> list[Series]:
        """One series for each size and back end, without wrong results."""
        found: dict[tuple[tuple[Key, Value], ...], dict[int, float]] = {}
        for (variant, repeat), document in self.documents.items():
            failed = {entry.name for entry in document.backends if entry.state != "finished"}
            for row in rows_to_compare(document.rows):
                if row.backend in failed or row.wrong:
                    continue
                labels: dict[Key, Value] = {
                    "operation": document.collective,
                    "backend": row.backend,
                    "collectives": variant.collectives,
                    "placement": variant.placement,
                    "np": variant.np,
                    "dtype": variant.dtype,
                    "device": document.device,
                    "bytes": row.bytes,
                }
                found.setdefault(tuple(labels.items()), {})[repeat] = row.seconds
        return [Series(dict(labels), seconds, "geometric mean") for labels, seconds in found.items()]


def folders(path: Path, variant: CollectiveVariant, repeat: int, *, new: bool) -> Iterator[Path]:
    """The existing folders of the variant's attempts in this round, or with `new` the next free
    one.
    """
    table = "-table" if variant.collectives == "table" else ""
    name = f"np-{variant.np}-{variant.dtype}-{variant.placement.replace(':', '-')}{table}-repeat-{repeat}"
    for attempt in itertools.count(1):
        folder = path / (name + (f"-attempt-{attempt}" if attempt > 1 else ""))
        if folder.exists() is not new:
            yield folder
        elif not new:
            return
