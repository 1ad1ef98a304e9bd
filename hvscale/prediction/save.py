"""The folder of a prediction: prediction.json, and the page that it shares with `hvscale scale`."""

from pathlib import Path

from pydantic import Field

from hvscale.core.documents import to_json
from hvscale.core.errors import RequestError
from hvscale.core.folder_lock import make_folder
from hvscale.core.run_folder import RunFolder, default_run_path, write_text
from hvscale.prediction.document import Loss, MessageSizes, PredictedRow, PredictionDocument
from hvscale.prediction.page import page
from hvscale.report.csv_file import write_csv

DOCUMENT, PAGE = "prediction.json", "prediction.html"
STUDY_PAGE = "scale.html"


def new_folder(asked: Path | None, job: RunFolder) -> Path:
    """Create the folder. Raises RequestError if it exists or cannot be created."""
    if asked is None:
        return default_run_path(["predict", job.path.name])
    try:
        if make_folder(asked):
            return asked.absolute()
    except OSError as error:
        raise RequestError(f"cannot create {asked}: {error.strerror}") from error
    raise RequestError(f"--run {asked}: it exists; name a new folder")


def save(document: PredictionDocument, folder: Path, study: Path | None = None) -> None:
    """Write the document and its page.

    `study`: the folder of the scaling study whose points the page shows; its own page then shows
    the prediction too. Raises RequestError if the disk is full or read-only.
    """
    html = page(document)
    texts = {folder / DOCUMENT: to_json(document) + "\n", folder / PAGE: html}
    if study is not None:
        texts[study / STUDY_PAGE] = html
    for path, text in texts.items():
        try:
            write_text(path, text)
        except OSError as error:
            raise RequestError(f"cannot write {path}: {error.strerror}") from error


def write_rows(document: PredictionDocument, path: Path) -> None:
    """Write the rows to a CSV file. Raises RequestError if it cannot be written."""
    write_csv(path, [PredictionCsvRow.of(row) for row in document.rows])


class PredictionCsvRow(PredictedRow):
    """A row with the parts of its loss as columns of their own."""

    loss: Loss | None = Field(default=None, exclude=True)
    messages: list[MessageSizes] = Field(default=[], exclude=True)
    agreement_seconds: float | None = None
    slowest_rank_seconds: float | None = None
    wire_seconds: float | None = None
    copies_seconds: float | None = None
    slowed_computing_seconds: float | None = None

    @classmethod
    def of(cls, row: PredictedRow) -> "PredictionCsvRow":
        parts = {} if row.loss is None else row.loss.model_dump()
        return cls(**{**row.model_dump(exclude={"loss", "messages"}), **parts})
