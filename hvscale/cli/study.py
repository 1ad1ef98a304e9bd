"""What the commands of studies share: measure, and print the results however the study ends."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hvscale.cli.console import print_json, print_message, print_warning

if TYPE_CHECKING:
    from hvscale.studies.document import InterleavedDocument, StudyDocument
    from hvscale.studies.interleaved import InterleavedStudy

Document = TypeVar("Document", bound="StudyDocument")
DocumentOfRuns = TypeVar("DocumentOfRuns", bound="InterleavedDocument")


def measure(
    study: "InterleavedStudy[DocumentOfRuns, Any, Any]",
    json: bool,
    csv: Path | None,
    *,
    write: Callable[[DocumentOfRuns, Path], None],
    show: Callable[[DocumentOfRuns], None],
    last: str,
) -> None:
    """Make the study's runs, then print its document."""
    from hvscale.report.progress import RunProgress

    try:
        with RunProgress(len(study.starts), study.document.repeats) as progress:
            study.measure(progress, print_warning)
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
