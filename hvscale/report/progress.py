"""Progress bars on stderr."""

import sys
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TimeElapsedColumn

from hvscale.core.plain_rich import PlainColumn, PlainConsole
from hvscale.core.terminal import printable
from hvscale.core.units import human_number


class ProgressBar:
    """A description, a bar and the time. It shows nothing if stderr is not a terminal."""

    def __init__(
        self,
        total: int | None,
        *columns: ProgressColumn,
        description: str = "starting",
        time: ProgressColumn | None = None,
        **fields: Any,
    ) -> None:
        """`columns` are shown between the bar and `time`, which is by default the elapsed time.

        `fields`: initial values for the columns.
        """
        self.progress = Progress(
            PlainColumn("{task.description}"),
            BarColumn(),
            *columns,
            time or TimeElapsedColumn(),
            console=PlainConsole(stderr=True),
            redirect_stdout=False,  # results must go to stdout, not above the bar
            disable=not sys.stderr.isatty(),
        )
        self.task = self.progress.add_task(description, total=total, **fields)

    def update(self, **changes: Any) -> None:
        """Update the task, as `rich.progress.Progress.update` does."""
        self.progress.update(self.task, **changes)

    def print(self, text: str) -> None:
        """Print a line on stderr, above the bar."""
        print(printable(text, sys.stderr), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()


class RunProgress(ProgressBar):
    """A line for each run of a study, and a bar over all runs."""

    def __init__(self, variants: int, repeats: int) -> None:
        super().__init__(variants * repeats, MofNCompleteColumn())
        self.repeats = repeats

    def starting(self, what: str, repeat: int) -> None:
        self.update(description=f"{what}, repeat {repeat} of {self.repeats}")

    def measured(self, what: str, repeat: int, value: float | None, unit: str | None) -> None:
        """`value`: None if the run failed."""
        self.update(advance=1)
        if value is not None:
            self.print(f"{what}, repeat {repeat} of {self.repeats}: {human_number(value, 4)} {unit or ''}".rstrip())
