"""Measures a program: every build in every place on every number of ranks, in turns, in a folder that can be gone on with."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
from pydantic import ValidationError

from hvscale.bench.applications import Application, Result, get, parse_sizes
from hvscale.bench.applications.build import build, find_compiler, label, parse_flags, source_hash
from hvscale.bench.applications.counters import Counters, read_counters, with_perf
from hvscale.bench.applications.document import ApplicationDocument, ApplicationRun, CountersRow, Variant
from hvscale.bench.compare_placements import options_of_each
from hvscale.errors import HvscaleError, RankFailedError, RequestError, UntrustedError
from hvscale.launch import RunInterruptedError, launch
from hvscale.placement_options import PlacementOptions
from hvscale.profiling.output import human_bytes
from hvscale.run_folder import RunFolder, cannot_write, default_run_path, write_text
from hvscale.scaling.document import State
from hvscale.scaling.study import named_failure, settings
from hvscale.scaling.work import parse_ranks
from hvscale.study_folder import finished_or_new, study_in

# What makes two measurements the same; more flags, placements, np and repeats may be asked for in the same folder.
SAME = ("application", "source", "sizes", "compiler", "settings")
ELSEWHERE = ("ssh", "slurm")  # where this machine's memory says nothing


class ApplicationStudy:
    """One measurement: its folder, and `document`, which is in bench-app.json after every run."""

    def __init__(
        self,
        path: Path,
        application: Application,
        document: ApplicationDocument,
        builds: Mapping[str, list[str]],
        places: Mapping[str, PlacementOptions],
        count: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.path, self.application, self.document = path, application, document
        self.builds, self.places, self.count, self.options = builds, places, count, options
        self.json, self.page = path / "bench-app.json", path / "bench-app.html"
        self.programs: dict[str, Path] = {}
        self.serial: dict[str, Result] = {}
        self.failure: HvscaleError | None = None

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
        placement: PlacementOptions,
        **options: Any,
    ) -> Self:
        """`options`: further keywords of `hvscale.launch.launch`; `placement`: names with commas between them. `count`: with perf, too.

        Raises RequestError for what cannot be measured; writes nothing.
        """
        application = get(name)
        nps = sorted(parse_ranks(ranks)) if ranks is not None else list(application.default_np)
        if repeats < 1:
            raise RequestError(f"--repeat {repeats}: at least one start of each is needed")
        sizes = parse_sizes(application, size)
        builds = parse_flags(flags)
        names = [name.strip() for name in placement.name.split(",")]
        if len(set(names)) != len(names):
            raise RequestError(f"--placement {placement.name}: name each once; for more starts of each use --repeat")
        for np in nps:
            if why_not := application.why_not(np, sizes):
                raise RequestError(f"--np {np}: {name}: {why_not}")
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
            settings=settings(placement=placement.model_copy(update={"placement": None}), **options),
            compiler=find_compiler(options),
            warnings=not_for_all,
        )
        if application.is_timed and application.base_np not in nps:
            document.warnings.append(f"np {application.base_np} is not measured, so no speed-up is known")
        return cls(folder, application, document, builds, places, count, options)

    def measure(
        self,
        *,
        starting: Callable[[str, int], None],
        measured: Callable[[str, int, float | None, str | None], None],
        warn: Callable[[str], None],
    ) -> None:
        """Make the runs that the folder does not hold. `starting(what, repeat)` is told before one, `measured(what, repeat, seconds, unit)` after it.

        A variant that failed is not started again. The failure is raised after all others have been measured: RankFailedError, or UntrustedError
        for a wrong result. Raises RequestError and RunInterruptedError at once. What was measured until then is kept in any case.
        """
        for text in self.document.warnings:
            warn(text)

        def warn_once(text: str) -> None:
            if text not in self.document.warnings:
                self.document.warnings.append(text)
                warn(text)

        with study_in(self.path, self.json, self.document, SAME, "hvscale bench app", "np-*"):
            self.write("running")
            self.build_all()
            try:
                failed = self.measure_serial(starting, warn_once)
                for repeat in range(1, self.document.repeats + 1):
                    for variant in self.document.variants():
                        if variant not in failed:
                            starting(str(variant), repeat)
                            run = self.measure_run(variant, repeat, warn_once)
                            measured(str(variant), repeat, run.seconds, "s")
                            if run.problem is not None:
                                failed.add(variant)
                if self.count and self.application.is_timed:
                    self.count_all(failed, starting, warn_once)
                if self.failure is not None:
                    raise self.failure
            except BaseException as error:
                ended: State = "failed" if isinstance(error, HvscaleError) else "interrupted"
                self.write("interrupted" if isinstance(error, RunInterruptedError) else ended)
                raise
            self.write("finished")

    def build_all(self) -> None:
        """Raises RequestError, with what the compiler says, and leaves nothing behind of a folder in which nothing was started."""
        folder = self.path / "builds"
        try:
            for flags, words in self.builds.items():
                self.programs[flags] = build(
                    self.application, words, self.document.compiler, self.options, folder / label(flags)
                )
        except BaseException:
            if not any(self.path.glob("np-*")):
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def measure_serial(self, starting: Callable[[str, int], None], warn: Callable[[str], None]) -> set[Variant]:
        """Start each build on one rank where others are checked against that and np 1 is not measured; gives what then cannot be checked."""
        failed: set[Variant] = set()
        if not self.application.needs_serial_run or 1 in self.document.np:
            return failed
        for flags in self.document.flags:
            serial = Variant(flags=flags, placement=self.document.placements[0], np=1)
            starting(f"{serial}, to check the others against", 0)
            if self.measure_run(serial, 0, warn).problem is not None:
                failed |= {variant for variant in self.document.variants() if variant.flags == flags}
        return failed

    def measure_run(self, variant: Variant, repeat: int, warn: Callable[[str], None]) -> ApplicationRun:
        """Start the program, unless a finished run is there, and add what came of it to the document."""
        run, is_there = finished_or_new(self.path / f"{folder_name(variant)}-repeat-{repeat}")
        done = {**dict(variant), "repeat": repeat, "folder": run.path.name}
        try:
            if not is_there:
                self.launch(variant, self.command(variant), run, warn)
            result = self.read_result(run)
            done |= {"seconds": result.seconds, "result": result.model_dump()}
            if problem := self.problem_of(variant, result):
                raise UntrustedError(f"{variant}: a wrong result: {problem}; see {run.log(0)}")
        except RequestError:
            raise
        except RunInterruptedError:
            self.document.runs.append(ApplicationRun(**done, problem="interrupted"))
            raise
        except HvscaleError as error:
            done["problem"] = str(error)
            self.failure = self.failure or named_failure(str(variant), error)
            warn(f"{variant} failed in repeat {repeat} and is not started again: {error}")
        else:
            record = run.read()
            self.document.library, self.document.host = record.library, record.host
        self.document.runs.append(ApplicationRun(**done))
        self.write("running")
        return self.document.runs[-1]

    def command(self, variant: Variant) -> list[str]:
        sizes = [f"{name}={value}" for name, value in self.document.sizes.items()]
        return [str(self.programs[variant.flags]), *sizes]

    def launch(self, variant: Variant, command: list[str], run: RunFolder, warn: Callable[[str], None]) -> None:
        place = self.places[variant.placement]
        launch(variant.np, command, run_path=run.path, placement=place, warn=warn, **self.options)

    def read_result(self, run: RunFolder) -> Result:
        """The line that rank 0 prints. Raises UntrustedError when there is none."""
        lines = [line for line in run.log(0).read_text(errors="replace").splitlines() if line.startswith("{")]
        try:
            return self.application.result.model_validate(json.loads(lines[-1]))
        except (IndexError, ValueError, ValidationError) as error:
            raise UntrustedError(f"the program printed no result: see {run.log(0)}") from error

    def problem_of(self, variant: Variant, result: Result) -> str | None:
        """What is wrong with the result. The first one on one rank is what the same build's others are checked against."""
        if variant.np == 1:
            self.serial.setdefault(variant.flags, result)
        if self.application.needs_serial_run and variant.flags not in self.serial:
            return "there is no run on one rank to check it against, since that failed"
        return self.application.problem(result, self.document.sizes, self.serial.get(variant.flags))

    def count_all(
        self, failed: set[Variant], starting: Callable[[str, int], None], warn: Callable[[str], None]
    ) -> None:
        """One more start of each variant with perf around its ranks, because counting may cost time; where that fails nothing else is lost."""
        problems: dict[str, str] = {}
        for variant in self.document.variants():
            if variant in failed:
                continue
            if variant.placement not in problems:
                starting(f"{variant}, counting", self.document.repeats)
                try:
                    self.document.counters.append(CountersRow(**dict(variant), counters=self.counted(variant, warn)))
                    continue
                except RunInterruptedError:
                    raise
                except HvscaleError as error:
                    said = error.last_lines[-1:] if isinstance(error, RankFailedError) else []
                    problems[variant.placement] = " ".join(
                        [str(error), *said]
                    )  # which the next one there would meet, too
            self.document.counters.append(CountersRow(**dict(variant), problem=problems[variant.placement]))

    def counted(self, variant: Variant, warn: Callable[[str], None]) -> Counters:
        command = with_perf(self.command(variant))
        run, is_there = finished_or_new(self.path / f"{folder_name(variant)}-counters")
        if not is_there:
            self.launch(variant, command, run, warn)
        return read_counters(run, variant.np)

    def write(self, state: State) -> None:
        """Raises RequestError when the folder cannot be written or the disk is full."""
        self.document.state = state
        self.document.tabulate()
        try:
            write_text(self.json, self.document.model_dump_json(by_alias=True, indent=2) + "\n")
            if state != "running" and (self.document.rows or self.document.pings):
                # Imported here: a wrong request need not wait for Plotly.
                from hvscale.bench.applications.page import page

                shown = page(self.document)
                write_text(self.page, shown)
        except OSError as error:
            raise cannot_write(self.path, error) from error


def folder_name(variant: Variant) -> str:
    return f"np-{variant.np}-{label(variant.flags)}-{variant.placement.replace(':', '-')}"


def check_memory(application: Application, np: int, sizes: Mapping[str, int]) -> None:
    """Raises RequestError, with the arithmetic, for sizes that this machine has no memory for."""
    needed, how = application.memory(np, sizes)
    there = psutil.virtual_memory().available
    if needed > there:
        raise RequestError(
            f"--np {np}: {application.name} needs {human_bytes(needed)} ({how}), and {human_bytes(there)} are free here: choose a smaller --size"
        )
