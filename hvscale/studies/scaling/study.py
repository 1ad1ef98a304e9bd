"""Measures how a command scales: fresh starts on each number of ranks, interleaved."""

from pathlib import Path
from typing import Self

from hvscale.core.errors import RequestError
from hvscale.core.numbers import parse_ranks
from hvscale.core.run_folder import RunFolder, default_run_path
from hvscale.launch import placements
from hvscale.launch.controller import launch
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.studies.interleaved import InterleavedStudy, ProgressReporter
from hvscale.studies.scaling.document import ScalingDocument, ScalingRun
from hvscale.studies.scaling.work import Scaling, Work
from hvscale.studies.throughput import Metric, read_throughput


class ScalingStudy(InterleavedStudy[ScalingDocument, int, ScalingRun]):
    """One scaling study. Its variants are the numbers of ranks."""

    verb = "scale"
    must_match = ("command", "scaling", "launch")  # a resuming call may change np, repeats and metric
    failure_text = "{what}, repeat {repeat} failed"

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
        """Check the request; write nothing.

        `options`: of every launch, except `np`. Raises RequestError for an invalid request.
        """
        nps = parse_ranks(ranks)
        if repeats < 1:
            raise RequestError(f"--repeat {repeats}: must be at least 1")
        work = Work(command, scaling)
        warning = work.check(nps)
        for np in nps:
            placements.get(options.placement, np)
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
            document.warnings.append(f"np 1 is not measured: speed-up and efficiency are relative to np {min(nps)}")
        return cls(work, document, Metric.parse(metric) if metric is not None else None, options)

    def run_rounds(self, progress: ProgressReporter) -> None:
        super().run_rounds(progress)
        self.warn_about_threads()

    def name(self, variant: int) -> str:
        return f"np {variant}"

    def folder_name(self, variant: int) -> str:
        return f"np-{variant}"

    def new_record(self, variant: int, repeat: int, folder: str) -> ScalingRun:
        return ScalingRun(np=variant, repeat=repeat, folder=folder)

    def launch(self, variant: int, run: RunFolder) -> None:
        options = self.options.replace(np=variant, run=run.path)
        launch(self.work.command_for(variant), options, LaunchHooks(warn=self.warn))

    def read(self, variant: int, run: RunFolder, record: ScalingRun) -> None:
        found = read_throughput(run, variant, self.metric, self.warn)
        record.throughput, record.source, record.threads_per_rank = found.value, found.source, found.threads_per_rank
        self.document.unit = found.unit
        run_record = run.read()
        self.document.library, self.document.host = run_record.measured_library, run_record.host

    def result(self, record: ScalingRun) -> tuple[float | None, str | None]:
        return record.throughput, self.document.unit

    def warn_about_threads(self) -> None:
        threads = {run.np: run.threads_per_rank for run in self.document.runs if run.threads_per_rank is not None}
        if len(set(threads.values())) > 1:
            each = ", ".join(f"{count} at np {np}" for np, count in sorted(threads.items()))
            self.warn(
                f"threads per rank differ ({each}), so speed-up does not compare equal ranks: use --threads {min(threads.values())}"
            )

    def has_figures(self) -> bool:
        return bool(self.document.rows)

    def html(self) -> str:
        from hvscale.studies.scaling.page import page

        return page(self.document)
