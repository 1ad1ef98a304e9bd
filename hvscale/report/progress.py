"""Progress bars on stderr."""

import sys
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TimeElapsedColumn

from hvscale.core.plain_rich import PlainColumn, PlainConsole
from hvscale.core.terminal import printable
from hvscale.core.units import human_number


class ProgressBar:
    """A description, a bar and the time, while it is entered; nothing where stderr is not a
    terminal.
    """

    def __init__(
        self,
        total: int | None,
        *columns: ProgressColumn,
        description: str = "starting",
        time: ProgressColumn | None = None,
        **fields: Any,
    ) -> None:
        """`columns` stand between the bar and `time`, by default the elapsed time; `fields`: the
        task's first words in them.
        """
        self.progress = Progress(
            PlainColumn("{task.description}"),
            BarColumn(),
            *columns,
            time or TimeElapsedColumn(),
            console=PlainConsole(stderr=True),
            redirect_stdout=False,  # results go where stdout goes, not above the bar
            disable=not sys.stderr.isatty(),
        )
        self.task = self.progress.add_task(description, total=total, **fields)

    def update(self, **changes: Any) -> None:
        """As `rich.progress.Progress.update`."""
        self.progress.update(self.task, **changes)

    def print(self, text: str) -> None:
        """A line on stderr, above the bar."""
        print(printable(text, sys.stderr), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()


class RunProgress(ProgressBar):
    """The runs of a study: a line for each, and a bar over all of them."""

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
