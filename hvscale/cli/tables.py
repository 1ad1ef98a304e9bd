"""Tables of recorded runs, as several commands print them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvscale.cli.console import print_json, print_message, print_warning, results

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hvscale.core.run_folder import RunFolder


def print_breakdown(
    breakdown: Any, per_rank: bool = False, json: bool = False, csv: Path | None = None, unasked: bool = True
) -> None:
    """`unasked`: whether to explain the table was left to the size of the run."""
    from hvscale.studies.run_report.breakdown_tables import point_to_point_table, table, write_breakdown_csv
    from hvscale.studies.run_report.explanation_tables import explanation_tables

    shown = [
        table(breakdown),
        *([table(breakdown, per_rank=True)] if per_rank else []),
        *([point_to_point_table(breakdown)] if breakdown.point_to_point else []),
        *explanation_tables(breakdown),
    ]
    print_document(breakdown, shown, write_breakdown_csv, json, csv)
    if unasked and not breakdown.explained:
        print_message("a large run, so nothing is said beyond its table: --explain does")


def print_gradients(run: "RunFolder") -> None:
    """Print one line about the gradients that a run recorded, on stderr.

    Raises RequestError when it recorded none.
    """
    from numpy import median

    from hvscale.core.units import human_bytes, human_seconds
    from hvscale.profiling.analyze.gradients import read_job_gradients

    gradients = read_job_gradients(run)
    for text in gradients.warnings:
        print_warning(text)
    print_message(
        f"gradients: {len(gradients.tensors)} tensors, {human_bytes(gradients.bytes)} a step; "
        f"{len(gradients.numbers)} steps of {len(gradients.ranks)} ranks, median {human_seconds(float(median(gradients.seconds)))}, "
        f"of which {human_seconds(float(median(gradients.blocked)))} waiting for gradients"
    )


def print_document(
    document: Any, shown: "Iterable[RenderableType]", write: Callable[[Any, Path], None], json: bool, csv: Path | None
) -> None:
    """A document with `warnings`: as tables or as JSON, and as CSV too where a file is given."""
    for text in document.warnings:
        print_warning(text)
    if csv is not None:
        write(document, csv)
    if json:
        print_json(document)
        return
    for table in shown:
        results().print(table)
