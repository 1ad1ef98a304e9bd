"""An invalid result.json in a run folder gives a one-line error or is ignored."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.studies.throughput import read_throughput
from hvscale.trainer import TrainResult
from hvscale.trainer.checkpoints.trained_model import load_trained_model
from hvscale.trainer.loggers.hook import images_per_second_of_one_rank

VALID_RESULT: dict[str, Any] = {
    "schema": "hvscale/train/1",
    **{"model": "edsr-baseline", "model_options": {"scale": 2, "n_resblocks": 1, "n_feats": 8}, "np": 1},
    **{"images_per_second": 5.0, "images_per_second_by_rank": [5.0], "steps": 4, "seconds": 3.5, "threads_per_rank": 1},
    **{"precision": "fp32", "memory_format": "contiguous", "run": "job", "model_file": "job/model.pt"},
}
INVALID_RESULTS = {
    **{"a list": b"[]", "a string": b'"x"', "null": b"null", "bytes": b"\xff\xfe", "cut": b"{", "nothing": b""},
    "deep": b"[" * 100_000,
    "speed in a list": json.dumps({**VALID_RESULT, "images_per_second": [5.0]}).encode(),
    "speed NaN": json.dumps({**VALID_RESULT, "images_per_second": float("nan")}).encode(),
    "speed too large": json.dumps({**VALID_RESULT, "images_per_second": 10**400}).encode(),
    "model in a list": json.dumps({**VALID_RESULT, "model": ["edsr"]}).encode(),
    "options as strings": json.dumps({**VALID_RESULT, "model_options": {"scale": "2", "n_feats": "8"}}).encode(),
    "options in a list": json.dumps({**VALID_RESULT, "model_options": [2]}).encode(),
}


@pytest.fixture(params=INVALID_RESULTS)
def folder_with_invalid_result(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "result.json").write_bytes(INVALID_RESULTS[request.param])
    return tmp_path


def test_invalid_result_gives_a_one_line_error(folder_with_invalid_result: Path) -> None:
    with pytest.raises(RequestError, match=r"result\.json is not a valid training result: ") as raised:
        TrainResult.read(folder_with_invalid_result)
    assert "\n" not in str(raised.value)
    with pytest.raises(RequestError, match=r"--one-rank-run .*: no result\.json of a training run there"):
        images_per_second_of_one_rank(folder_with_invalid_result, "edsr-baseline")


def test_weights_beside_an_invalid_result_are_identified_by_their_shapes(folder_with_invalid_result: Path) -> None:
    torch.save(
        models.build("edsr-baseline", n_resblocks=1, n_feats=8).state_dict(), folder_with_invalid_result / "model.pt"
    )
    assert load_trained_model(folder_with_invalid_result, None, {}).options == {
        "scale": 2,
        "n_resblocks": 1,
        "n_feats": 8,
    }


@pytest.mark.parametrize("options", [{"n_feats": 10**12}, {"n_resblocks": -1}, {"scale": 7}, {"n_feats": 8.5}])
def test_weights_take_precedence_over_their_result(tmp_path: Path, options: dict[str, Any]) -> None:
    wrong = {**VALID_RESULT, "model_options": {**VALID_RESULT["model_options"], **options}}
    (tmp_path / "result.json").write_text(json.dumps(wrong))
    torch.save(models.build("edsr-baseline", n_resblocks=1, n_feats=8).state_dict(), tmp_path / "model.pt")
    assert load_trained_model(tmp_path, None, {}).options == VALID_RESULT["model_options"]


@pytest.mark.parametrize("kind", [name for name in INVALID_RESULTS if not name.startswith(("model", "options"))])
def test_throughput_is_not_read_from_an_invalid_result(tmp_path: Path, kind: str) -> None:
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    run.steps.write_text('{"images": 8, "seconds": 1}\n')
    (tmp_path / "result.json").write_bytes(INVALID_RESULTS[kind])
    assert read_throughput(run, 2, None, lambda text: None).source == "steps.jsonl"


def test_reference_result_is_valid(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(VALID_RESULT))
    assert TrainResult.read(tmp_path).images_per_second == 5
