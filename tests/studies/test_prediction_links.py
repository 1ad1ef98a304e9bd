"""The links from a run's report to the predictions that were made from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from hvscale.core.documents import to_json
from hvscale.core.run_folder import RunFolder
from hvscale.studies.run_report.predictions import prediction_links
from tests.prediction.predictions import prediction

ROWS = [{"np": 8, "source": "predicted", "scaling_efficiency": 0.5}]


def write_prediction(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "prediction.json").write_text(text)
    (folder / "prediction.html").write_text("a page")
    return folder


def test_predictions_beside_the_run_are_linked(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "edsr")
    run.path.mkdir(parents=True)
    write_prediction(tmp_path / "runs/a #1-predict", to_json(prediction()))
    (link,) = prediction_links(run, run.path)
    assert link.href == "../a%20%231-predict/prediction.html"
    assert link.name == "a #1-predict"
    assert link.text == "np 1 to 512; 70% scaling efficiency on 512 ranks"
    (elsewhere,) = prediction_links(run, tmp_path)
    assert elsewhere.href == "runs/a%20%231-predict/prediction.html"
    assert prediction_links(RunFolder(tmp_path / "runs" / "vgg"), tmp_path) == []
    (tmp_path / "runs/a #1-predict/prediction.html").unlink()
    assert prediction_links(run, run.path) == []


@pytest.mark.parametrize(
    "document",
    [
        "{ cut short",
        {"schema": "hvscale/predict/99", "runs": ["edsr"], "rows": ROWS},
        {"schema": "hvscale/predict/1", "runs": ["edsr"], "rows": []},
        {"schema": "hvscale/predict/1", "runs": ["edsr"], "rows": [{"np": 0, "source": "predicted"}]},
        [],
    ],
)
def test_documents_that_cannot_be_used_are_left_out(tmp_path: Path, document: Any) -> None:
    run = RunFolder(tmp_path / "edsr")
    run.path.mkdir()
    write_prediction(tmp_path / "bad", document if isinstance(document, str) else json.dumps(document))
    write_prediction(tmp_path / "good", json.dumps({"schema": "hvscale/predict/1", "runs": ["edsr"], "rows": ROWS}))
    assert [link.name for link in prediction_links(run, run.path)] == ["good"]
