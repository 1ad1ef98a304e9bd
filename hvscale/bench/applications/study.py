"""Measures a program in a resumable folder: builds, placements and numbers of ranks are
interleaved.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from hvscale.bench.applications import APPLICATIONS, Application, ProgramResult, parse_sizes
from hvscale.bench.applications.build import build, find_compiler, label, parse_flags, source_hash
from hvscale.bench.applications.counters import Counters, read_counters, with_perf
from hvscale.bench.applications.document import ApplicationDocument, ApplicationRun, ApplicationVariant, CountersRow
from hvscale.bench.collectives.memory import available_bytes
from hvscale.core.documents import parse_json
from hvscale.core.errors import HvscaleError, RankFailedError, RequestError, UntrustedError
from hvscale.core.numbers import parse_ranks
from hvscale.core.run_folder import RunFolder, default_run_path
from hvscale.core.units import human_bytes
from hvscale.launch.controller import RunInterruptedError, launch
from hvscale.launch.mpi.reported_library import LibraryCheck
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import PLACEMENTS
from hvscale.launch.supervision.output import lines_of
from hvscale.studies.base import finished_or_new_run
from hvscale.studies.comparison.placements import options_of_each, placement_names
from hvscale.studies.interleaved import InterleavedStudy, ProgressReporter

BUILDS = "builds"
# Placements whose ranks do not use this machine's memory.
ELSEWHERE = tuple(name for name, placement in PLACEMENTS.all().items() if not placement.on_this_machine)


class ApplicationStudy(InterleavedStudy[ApplicationDocument, ApplicationVariant, ApplicationRun]):
    """One measurement of a program."""

    verb = "bench app"
    # A resumed study may add flags, placements, np and repeats.
    must_match = ("application", "source", "sizes", "compiler", "launch")

    def __init__(
        self,
        application: Application,
        document: ApplicationDocument,
        builds: Mapping[str, list[str]],
        places: Mapping[str, PlacementOptions],
        count: bool,
        options: LaunchOptions,
    ) -> None:
        super().__init__(document, document.variants())
        self.application, self.builds, self.places = application, builds, places
        self.count, self.options = count, options
        self.programs: dict[str, Path] = {}
        self.serial: dict[str, ProgramResult] = {}

    @classmethod
    def of(
        cls,
        name: str,
        *,
        flags: list[str],
        ranks: str | None,
        repeats: int,
        size: list[str],
        count: bool,
        path: Path | None,
        options: LaunchOptions,
    ) -> Self:
        """`options`: of each launch; the placement has comma-separated names. `count`: whether to
        count events with perf too.

        Raises RequestError for an invalid request. Writes nothing.
        """
        application = APPLICATIONS.get(name)
        placement = options.placement
        nps = sorted(parse_ranks(ranks)) if ranks is not None else list(application.default_np)
        if repeats < 1:
            raise RequestError(f"--repeat {repeats}: must be at least 1")
        sizes = parse_sizes(application, size)
        builds = parse_flags(flags)
        names = placement_names(placement)
        for np in nps:
            if reason := application.unsupported_reason(np, sizes):
                raise RequestError(f"--np {np}: {name}: {reason}")
            places, not_for_all = options_of_each(names, placement, np)
            if not {*names} & {*ELSEWHERE}:
                check_memory(application, np, sizes)
        folder = (path or default_run_path(["bench-app", name])).absolute()
        document = ApplicationDocument(
            folder=str(folder),
            application=name,
            source=source_hash(application),
            sizes=sizes,
            flags=list(builds),
            placements=names,
            np=nps,
            repeats=repeats,
            base_np=application.base_np,
            launch=options.replace(placement=placement.model_copy(update={"placement": None})).recorded(),
            compiler=find_compiler(options),
            warnings=not_for_all,
        )
        if application.is_timed and application.base_np not in nps:
            document.warnings.append(f"np {application.base_np} is not measured, so there are no speed-ups")
        return cls(application, document, builds, places, count, options)

    def prepare(self) -> None:
        """Build the program. Raises RequestError with the compiler's output."""
        for flags, words in self.builds.items():
            folder = self.path / BUILDS / label(flags)
            self.programs[flags] = build(self.application, words, self.document.compiler, self.options, folder)

    def discard(self) -> None:
        shutil.rmtree(self.path / BUILDS, ignore_errors=True)
        super().discard()

    def resume(self, previous: ApplicationDocument) -> None:
        # The finished runs are checked against np 1, which may be new in this call.
        for run in previous.runs:
            if run.np == 1 and run.problem is None and run.result is not None:
                with suppress(ValidationError):
                    self.serial.setdefault(run.flags, self.application.result.model_validate(run.result))
        super().resume(previous)
        if self.count:
            self.document.counters = [row for row in previous.counters if row.variant in self.variants]

    def planned(self) -> list[tuple[ApplicationVariant, int]]:
        return [*((serial, 0) for serial in self.serial_references()), *super().planned()]

    def can_be_checked(self, variant: ApplicationVariant) -> bool:
        return variant.np == 1 or not self.application.needs_serial_run or variant.flags in self.serial

    def run_rounds(self, progress: ProgressReporter) -> None:
        self.run_serial_reference(progress)
        super().run_rounds(progress)
        if self.count and self.application.is_timed:
            self.count_all(progress)

    def serial_references(self) -> list[ApplicationVariant]:
        """Each build on one rank, if results are checked against it and np 1 is not measured."""
        if not self.application.needs_serial_run or 1 in self.document.np:
            return []
        place = self.document.placements[0]
        return [ApplicationVariant(flags=flags, placement=place, np=1) for flags in self.document.flags]

    def run_serial_reference(self, progress: ProgressReporter) -> None:
        for serial in self.serial_references():
            progress.starting(f"{serial}, reference result", 0)
            if self.run_variant(serial, 0).problem is not None:
                self.failed |= {variant for variant in self.variants if variant.flags == serial.flags}

    def folder_name(self, variant: ApplicationVariant) -> str:
        return f"np-{variant.np}-{label(variant.flags)}-{variant.placement.replace(':', '-')}"

    def new_record(self, variant: ApplicationVariant, repeat: int, folder: str) -> ApplicationRun:
        return ApplicationRun(**dict(variant), repeat=repeat, folder=folder)

    def launch(self, variant: ApplicationVariant, run: RunFolder) -> None:
        self.launch_command(variant, self.command(variant), run)

    def launch_command(self, variant: ApplicationVariant, command: list[str], run: RunFolder) -> None:
        place = self.places[variant.placement]
        if place.nodes is not None and place.nodes > variant.np:  # the reference run is on one rank
            place = place.model_copy(update={"nodes": variant.np})
        options = self.options.replace(np=variant.np, run=run.path, placement=place)
        launch(command, options, LaunchHooks(warn=self.warn, watch=LibraryCheck().is_mismatch))

    def read(self, variant: ApplicationVariant, run: RunFolder, record: ApplicationRun) -> None:
        result = self.read_result(run)
        record.seconds, record.result = result.seconds, result.model_dump()
        if problem := self.check_result(variant, result):
            raise UntrustedError(f"{variant}: a wrong result: {problem}; see {run.log(0)}")
        run_record = run.read()
        self.document.library, self.document.host = run_record.measured_library, run_record.host

    def result(self, record: ApplicationRun) -> tuple[float | None, str | None]:
        return record.seconds, "s"

    def command(self, variant: ApplicationVariant) -> list[str]:
        sizes = [f"{name}={value}" for name, value in self.document.sizes.items()]
        return [str(self.programs[variant.flags]), *sizes]

    def read_result(self, run: RunFolder) -> ProgramResult:
        """The result that rank 0 printed. Raises UntrustedError if there is none."""
        lines = [line for line in lines_of(run.log(0)) if line.startswith("{")]
        try:
            return self.application.result.model_validate(parse_json(lines[-1]))
        except (IndexError, ValueError, ValidationError) as error:
            raise UntrustedError(f"the program printed no result: see {run.log(0)}") from error

    def check_result(self, variant: ApplicationVariant, result: ProgramResult) -> str | None:
        """What is wrong with the result, or None. A build's first result on one rank is the
        reference for its other runs.
        """
        if variant.np == 1:
            self.serial.setdefault(variant.flags, result)
        if self.application.needs_serial_run and variant.flags not in self.serial:
            return "not checked, because the reference run on one rank failed"
        return self.application.check_result(result, self.document.sizes, self.serial.get(variant.flags))

    def count_all(self, progress: ProgressReporter) -> None:
        """Run each variant once more under perf, because counting can slow it down. A failure is
        only recorded.
        """
        problems: dict[str, str] = {}
        for variant in self.variants:
            if variant in self.failed:
                continue
            if variant.placement not in problems:
                progress.starting(f"{variant}, counting", self.document.repeats)
                try:
                    self.keep_counters(CountersRow(**dict(variant), counters=self.count_events(variant)))
                    continue
                except RunInterruptedError:
                    raise
                except HvscaleError as error:
                    # The other variants in this placement would fail too.
                    output = error.last_lines[-1:] if isinstance(error, RankFailedError) else []
                    problems[variant.placement] = " ".join([str(error), *output])
            self.keep_counters(CountersRow(**dict(variant), problem=problems[variant.placement]))

    def keep_counters(self, row: CountersRow) -> None:
        """Add the row in place of that of an earlier call."""
        self.document.counters = [*(one for one in self.document.counters if one.variant != row.variant), row]

    def count_events(self, variant: ApplicationVariant) -> Counters:
        command = with_perf(self.command(variant))
        run, is_finished = finished_or_new_run(self.path / f"{self.folder_name(variant)}-counters")
        if not is_finished:
            self.launch_command(variant, command, run)
        return read_counters(run, variant.np)

    def has_figures(self) -> bool:
        return bool(self.document.rows or self.document.pings)

    def html(self) -> str:
        from hvscale.bench.applications.page import page

        return page(self.document)


def check_memory(application: Application, np: int, sizes: Mapping[str, int]) -> None:
    """Raises RequestError, with the arithmetic, if the sizes do not fit into this machine's
    memory, or into what a cgroup leaves of it.
    """
    needed, how = application.memory(np, sizes)
    available = available_bytes()
    if needed > available:
        raise RequestError(
            f"--np {np}: {application.name} needs {human_bytes(needed)} ({how}), and {human_bytes(available)} are free here: choose a smaller --size"
        )
