"""The predictions that were made from a run, for links on its report."""

import os
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from hvscale.core.documents import from_json
from hvscale.core.files import read_bytes
from hvscale.core.run_folder import RunFolder

DOCUMENT, PAGE = "prediction.json", "prediction.html"


class PredictionLink(NamedTuple):
    """`href`: relative to the folder of the report."""

    href: str
    name: str
    text: str


class _Row(BaseModel):
    """The fields of a predicted row that the link shows."""

    model_config = ConfigDict(allow_inf_nan=False)

    np: Annotated[int, Field(gt=0)]
    source: str
    scaling_efficiency: float


class _Prediction(BaseModel):
    """The fields of `hvscale predict --json` that are read here."""

    version: Literal["hvscale/predict/1"] = Field(alias="schema")
    runs: list[str]
    rows: Annotated[list[_Row], Field(min_length=1)]


def prediction_links(run: RunFolder, folder: Path) -> list[PredictionLink]:
    """The pages of predictions from `run` that lie beside it, for a report in `folder`.

    Folders that cannot be read are left out.
    """
    path = run.path.resolve()
    found = []
    for file in sorted(path.parent.glob(f"*/{DOCUMENT}")):
        page = file.with_name(PAGE)
        prediction = _read(file)
        if prediction is None or not page.is_file() or path.name not in {Path(name).name for name in prediction.runs}:
            continue
        href = quote(os.path.relpath(page, folder.resolve()), errors="surrogateescape")
        found.append(PredictionLink(href, file.parent.name, _describe(prediction.rows)))
    return found


def _read(file: Path) -> _Prediction | None:
    try:
        return from_json(_Prediction, read_bytes(file))
    except (OSError, ValueError):
        return None


def _describe(rows: list[_Row]) -> str:
    predicted = [row for row in rows if row.source in ("predicted", "documented")] or rows
    first, last = (choose(predicted, key=lambda row: row.np) for choose in (min, max))
    ranks = f"np {last.np}" if first.np == last.np else f"np {first.np} to {last.np}"
    return f"{ranks}; {last.scaling_efficiency:.0%} scaling efficiency on {last.np} ranks"
