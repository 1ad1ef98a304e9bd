"""The progress bar of `hvscale tune-collectives`."""

from typing import Self

from hvscale.comm_tuning.collectives.document import TuningJob
from hvscale.comm_tuning.collectives.measure.request import RankReport, Sample, Trying
from hvscale.comm_tuning.collectives.study import CollectivesStudy
from hvscale.core.units import human_bytes
from hvscale.report.progress import ProgressBar


class CollectivesProgress(ProgressBar):
    """A progress bar over the sizes of all jobs.

    It appears with the first job, so that an earlier error is a single line.
    """

    def __init__(self, study: CollectivesStudy) -> None:
        super().__init__(None, description="")
        self.study = study
        self.sizes = 0  # of earlier jobs
        self.seen: set[int] = set()
        self.job_label = ""

    def __enter__(self) -> Self:
        return self

    def job(self, job: TuningJob, sizes: list[int]) -> None:
        self.progress.start()
        document = self.study.document
        self.sizes += len(self.seen)
        self.seen = set()
        remaining = sum(
            len(document.sizes[one.operation]) for one in document.jobs if not one.finished and one is not job
        ) + len(sizes)
        eager = f", eager limit {human_bytes(job.eager_limit_bytes)}" if job.eager_limit_bytes else ""
        self.job_label = f"np {job.np}, {job.operation}{eager}"
        self.update(total=self.sizes + remaining, completed=self.sizes, description=self.job_label)

    def report(self, report: RankReport) -> None:
        if isinstance(report, Trying | Sample):
            self.seen.add(report.bytes)
            choice = report.choice if isinstance(report, Trying) else report.choices[0]
            self.update(
                description=f"{self.job_label}, {human_bytes(report.bytes)}: {choice}",
                completed=self.sizes + len(self.seen) - 1,
            )
