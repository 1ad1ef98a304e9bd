"""Measures the scaling of a command: fresh starts on each number of ranks, interleaved, in a
resumable folder.
"""

from pathlib import Path
from typing import Self

from hvscale.core.errors import RequestError
from hvscale.core.numbers import parse_ranks
from hvscale.core.run_folder import RunFolder, default_run_path
from hvscale.launch.controller import launch
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.studies.interleaved import InterleavedStudy, ProgressReporter
from hvscale.studies.scaling.document import ScalingDocument, ScalingRun
from hvscale.studies.scaling.work import Scaling, Work
from hvscale.studies.throughput import Metric, read_throughput


class ScalingStudy(InterleavedStudy[ScalingDocument, int, ScalingRun]):
    """One measurement of scaling, in turns on each np."""

    verb = "scale"
    same = ("command", "scaling", "launch")  # more np or repeats may be asked for
    failing = "{what}, repeat {repeat} failed"

    def __init__(self, work: Work, document: ScalingDocument, metric: Metric | None, options: LaunchOptions) -> None:
        super().__init__(document, document.np)
        self.work, self.metric, self.options = work, metric, options

    @classmethod
    def of(
        cls,
        command: list[str],
        *,
        ranks: str,
        repeats: int,
        scaling: Scaling,
        metric: str | None,
        path: Path | None,
        options: LaunchOptions,
    ) -> Self:
        """`options`: of every start, but for `np`. Raises RequestError for what cannot be measured;
        writes nothing.
        """
        nps = parse_ranks(ranks)
        if repeats < 1:
            raise RequestError(f"--repeat {repeats}: at least one measurement of each np is needed")
        found = Metric.parse(metric) if metric is not None else None
        work = Work(command, scaling)
        warning = work.check(nps)
        folder = (path or default_run_path(["scale", *command])).absolute()
        document = ScalingDocument(
            folder=str(folder),
            command=command,
            scaling=scaling,
            launch=options.recorded(),
            metric=metric,
            np=nps,
            repeats=repeats,
            base_np=min(nps),
            warnings=[warning] if warning else [],
        )
        if min(nps) != 1:
            document.warnings.append(f"np 1 is not measured: speed-up and efficiency are over np {min(nps)}")
        return cls(work, document, found, options)

    def run_rounds(self, progress: ProgressReporter) -> None:
        super().run_rounds(progress)
        self.warn_of_threads()

    def name(self, np: int) -> str:
        return f"np {np}"

    def label(self, np: int) -> str:
        return f"np-{np}"

    def record(self, np: int, repeat: int, folder: str) -> ScalingRun:
        return ScalingRun(np=np, repeat=repeat, folder=folder)

    def launch(self, np: int, run: RunFolder) -> None:
        launch(self.work.command_for(np), self.options.replace(np=np, run=run.path), LaunchHooks(warn=self.warn))

    def read(self, np: int, run: RunFolder, done: ScalingRun) -> None:
        found = read_throughput(run, np, self.metric, self.warn)
        done.throughput, done.source, done.threads_per_rank = found.value, found.source, found.threads_per_rank
        self.document.unit = found.unit
        record = run.read()
        self.document.library, self.document.host = record.measured_library, record.host

    def figure(self, done: ScalingRun) -> tuple[float | None, str | None]:
        return done.throughput, self.document.unit

    def warn_of_threads(self) -> None:
        threads = {run.np: run.threads_per_rank for run in self.document.runs if run.threads_per_rank is not None}
        if len(set(threads.values())) > 1:
            each = ", ".join(f"{count} at np {np}" for np, count in sorted(threads.items()))
            self.warn(
                f"threads per rank: {each}; so cores are shared out anew, not added: --threads {min(threads.values())} keeps them equal"
            )

    def has_figures(self) -> bool:
        return bool(self.document.rows)

    def html(self) -> str:
        from hvscale.studies.scaling.page import page

        return page(self.document)
