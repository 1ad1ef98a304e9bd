"""What the commands of studies do: measure, and print what there is of it however that ends."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hvscale.cli.console import print_json, print_message, print_warning

if TYPE_CHECKING:
    from hvscale.studies.base import RunsDocument, StudyInTurns
    from hvscale.studies.folder import StudyDocument

Document = TypeVar("Document", bound="StudyDocument")
DocumentOfRuns = TypeVar("DocumentOfRuns", bound="RunsDocument")


def measure(
    study: "StudyInTurns[DocumentOfRuns, Any, Any]",
    json: bool,
    csv: Path | None,
    *,
    write: Callable[[DocumentOfRuns, Path], None],
    show: Callable[[DocumentOfRuns], None],
    last: str,
) -> None:
    """Make the study's starts. The rest is `print_document`'s."""
    from hvscale.studies.scaling.output import RunsShown

    try:
        with RunsShown(len(study.starts), study.document.repeats) as shown:
            study.measure(starting=shown.starting, measured=shown.measured, warn=print_warning)
    finally:
        if study.has_figures():
            print_document(study.document, json, csv, write=write, show=show, last=last)


def print_document(
    document: Document,
    json: bool,
    csv: Path | None,
    *,
    write: Callable[[Document, Path], None],
    show: Callable[[Document], None],
    last: str,
) -> None:
    """As JSON, or by `show`; `write` makes the CSV file, and `last` says where everything lies."""
    if csv is not None:
        write(document, csv)
    if json:
        print_json(document)
    else:
        show(document)
    print_message(last)
