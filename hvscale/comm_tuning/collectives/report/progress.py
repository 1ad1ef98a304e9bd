"""What is shown while collectives are measured: one line for the job at work, and how far all of them are."""

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TimeElapsedColumn

from hvscale.comm_tuning.collectives.document import Job
from hvscale.comm_tuning.collectives.measure.request import Answer, Sample, Trying
from hvscale.comm_tuning.collectives.study import CollectivesStudy
from hvscale.core.plain_rich import PlainColumn, PlainConsole
from hvscale.core.units import human_bytes


class MeasuringShown:
    """A bar over the sizes of all jobs, on stderr."""

    def __init__(self, study: CollectivesStudy) -> None:
        self.study = study
        self.progress = Progress(
            PlainColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=PlainConsole(stderr=True)
        )
        self.task = self.progress.add_task("", total=None)
        self.sizes = 0  # of the jobs before this one
        self.seen: set[int] = set()
        self.where = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.where:
            self.progress.stop()

    def job(self, job: Job, sizes: list[int]) -> None:
        # Not before: what is refused is said in one line.
        self.progress.start()
        document = self.study.document
        self.sizes += len(self.seen)
        self.seen = set()
        left = sum(
            len(document.sizes[one.operation]) for one in document.jobs if not one.finished and one is not job
        ) + len(sizes)
        eager = f", eager limit {human_bytes(job.eager_limit_bytes)}" if job.eager_limit_bytes else ""
        self.where = f"np {job.np}, {job.operation}{eager}"
        self.progress.update(self.task, total=self.sizes + left, completed=self.sizes, description=self.where)

    def answer(self, answer: Answer) -> None:
        if isinstance(answer, Trying | Sample):
            self.seen.add(answer.bytes)
            choice = answer.choice if isinstance(answer, Trying) else answer.choices[0]
            self.progress.update(
                self.task,
                description=f"{self.where}, {human_bytes(answer.bytes)}: {choice}",
                completed=self.sizes + len(self.seen) - 1,
            )
