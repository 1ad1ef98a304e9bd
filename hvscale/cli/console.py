"""How commands print: results on stdout, messages and progress on stderr.

Functions import rich and the tables that they print: at the top, rich would take a third of the
start-up time.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from hvscale.core.documents import to_json
from hvscale.core.terminal import printable, rank_line

if TYPE_CHECKING:
    from hvscale.core.plain_rich import PlainConsole
    from hvscale.core.run_folder import RunFolder
    from hvscale.report.progress import ProgressBar
    from hvscale.studies.document import InterleavedDocument
    from hvscale.studies.interleaved import InterleavedStudy

Document = TypeVar("Document", bound=BaseModel)
StudyResult = TypeVar("StudyResult", bound="InterleavedDocument")
DIM, RED, YELLOW = "2", "31", "33"


@functools.cache
def results() -> "PlainConsole":
    """Return the console on stdout, for tables."""
    from hvscale.core.plain_rich import PlainConsole

    return PlainConsole()


@functools.cache
def messages() -> "PlainConsole":
    """Return the console on stderr, for progress bars."""
    from hvscale.core.plain_rich import PlainConsole

    return PlainConsole(stderr=True)


def spinner(text: str) -> AbstractContextManager[object]:
    """Show a spinner with `text` on a terminal, and nothing elsewhere."""
    return messages().status(text) if sys.stderr.isatty() else nullcontext()


@contextmanager
def progress_bar() -> Iterator[None]:
    """Show a bar on a terminal for work that reports its `Progress`, from the first second on."""
    from hvscale.core.progress import observed

    bar: ProgressBar | None = None
    began = time.monotonic()

    def show(what: str, done: float) -> None:
        nonlocal bar
        from hvscale.report.progress import ProgressBar

        if bar is None and time.monotonic() - began > 1:
            bar = ProgressBar(1, description=what)
            bar.progress.live.transient = True
            bar.progress.start()
        if bar is not None:
            bar.update(description=what, completed=done)

    try:
        with observed(show) if sys.stderr.isatty() else nullcontext():
            yield
    finally:
        if bar is not None:
            bar.progress.stop()


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table; columns of numbers are aligned right, others are wrapped."""
    from hvscale.report.tables import plain_table

    table = plain_table(None, None, *columns)
    for number, column in enumerate(table.columns):
        if number == 0 or not any(row[number][:1].isdigit() for row in rows):
            column.justify, column.no_wrap, column.overflow = "left", False, "fold"
    for row in rows:
        table.add_row(*row)
    results().print(table)


def print_json(document: BaseModel) -> None:
    print(to_json(document))


def print_document(
    document: Document,
    json: bool,
    csv: Path | None,
    *,
    write_csv: Callable[[Document, Path], None],
    show: Callable[[Document], None],
    last: str = "",
) -> None:
    """Print a result: as JSON or by `show`, and as a CSV file if `csv` names one.

    `last`: the message after it, such as the folder of a study. The CSV file comes last, because
    it may fail to be written.
    """
    if json:
        print_json(document)
    else:
        show(document)
    if last:
        print_message(last)
    if csv is not None:
        write_csv(document, csv)


def print_breakdown(
    breakdown: Any,
    per_rank: bool = False,
    json: bool = False,
    csv: Path | None = None,
    explain: bool | None = None,
    last: str = "",
) -> None:
    """Print the breakdown of a run. `explain`: the value of --explain; `last`: as of
    `print_document`.
    """
    from hvscale.profiling.analyze.explanation import ONLY_COUNTED
    from hvscale.studies.run_report.breakdown_tables import (
        point_to_point_table,
        rank_rows_table,
        table,
        write_breakdown_csv,
    )
    from hvscale.studies.run_report.explanation_tables import explanation_tables
    from hvscale.studies.run_report.rank_tables import rank_tables

    def show(document: Any) -> None:
        results().print(table(document))
        if per_rank:
            for one in rank_tables(document):
                results().print(one.table())
            results().print(rank_rows_table(document))
        if document.point_to_point:
            results().print(point_to_point_table(document))
        for explanation in explanation_tables(document):
            results().print(explanation)

    print_warnings(breakdown.warnings)
    print_document(breakdown, json, csv, write_csv=write_breakdown_csv, show=show, last=last)
    if explain is None and not breakdown.explained:
        reason = breakdown.unavailable["waiting"]
        print_message(f"waiting, exposed communication, buffer reuse and Horovod's phases are left out: {reason}")
    if not json and breakdown.unavailable.get("waiting") == ONLY_COUNTED:
        print_message(f"waiting, late ranks and buffer reuse are left out: {ONLY_COUNTED}")


def print_gradients(run: "RunFolder") -> None:
    """Print one line about the gradients that a run recorded, on stderr; a warning if it has none.

    Raises RequestError if they cannot be used.
    """
    from numpy import median

    from hvscale.core.units import human_bytes, human_seconds
    from hvscale.profiling.analyze.gradients import read_job_gradients

    if not any(run.hvprof.glob("gradients-*.hvg")):
        return print_warning(
            "no gradients were recorded: --gradients needs a program that uses horovod.torch on two or more ranks"
        )
    gradients = read_job_gradients(run)
    print_warnings(gradients.warnings)
    others = (
        f"; left out: {gradients.left_out} steps with other tensors or not on all ranks" if gradients.left_out else ""
    )
    print_message(
        f"gradients: {len(gradients.tensors)} tensors, {human_bytes(gradients.bytes)} a step; "
        f"{len(gradients.numbers)} steps of {len(gradients.ranks)} ranks, median {human_seconds(float(median(gradients.seconds)))}, "
        f"of which {human_seconds(float(median(gradients.blocked)))} waiting for gradients{others}"
    )
    return None


def measure_and_print(
    study: "InterleavedStudy[StudyResult, Any, Any]",
    json: bool,
    csv: Path | None,
    *,
    write_csv: Callable[[StudyResult, Path], None],
    show: Callable[[StudyResult], None],
    last: str,
    page: str = "",
) -> None:
    """Measure a study and print its document, also when the study fails or is interrupted.

    `page`: what the study's page shows. It is named after `last` if it was written.
    """
    from hvscale.report.progress import RunProgress

    try:
        with RunProgress(len(study.variants), study.document.repeats) as progress:
            study.measure(progress, print_warning)
    finally:
        if study.has_figures():
            if page and study.page_written:
                last += f"\n{page}: {study.page}"
            print_document(study.document, json, csv, write_csv=write_csv, show=show, last=last)


def print_line(text: str, colour: str) -> None:
    """Print a line on stderr, in `colour` (an ANSI code) on a terminal.

    Under `hvscale launch` stderr may look like a terminal, but is a log file.
    """
    text = printable(text, sys.stderr)
    coloured = sys.stderr.isatty() and not {"NO_COLOR", "HVSCALE_RUN"} & os.environ.keys()
    print(f"\x1b[{colour}m{text}\x1b[0m" if coloured else text, file=sys.stderr, flush=True)


def print_message(text: str) -> None:
    print_line(text, DIM)


def print_warning(text: str) -> None:
    print_line(f"hvscale: warning: {text}", YELLOW)


def print_warnings(texts: list[str]) -> None:
    for text in texts:
        print_warning(text)


def print_error(text: str, exit_status: int) -> int:
    print_line(f"hvscale: {text}", RED)
    return exit_status


def print_rank_line(rank: int, line: str) -> None:
    """Print a line of a rank's output. The job goes on if nobody reads stdout any more."""
    try:
        print(f"[{rank}] {rank_line(line, sys.stdout)}", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print_warning("nothing reads the output any more: the job goes on, and the run folder's logs have its output")


def print_rank_line_on_stderr(rank: int, line: str) -> None:
    print(f"[{rank}] {rank_line(line, sys.stderr)}", file=sys.stderr, flush=True)


def print_last_lines(lines: list[str]) -> None:
    """Print the last lines of a failed rank."""
    for line in lines:
        print(f"    {rank_line(line, sys.stderr)}", file=sys.stderr, flush=True)


def print_text(text: str) -> None:
    """Print a result that is already text."""
    print(printable(text, sys.stdout))
