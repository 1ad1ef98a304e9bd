"""Training in a single process, and launched processes that Horovod cannot connect."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvscale.core.errors import RequestError
from hvscale.trainer import TrainConfig, train
from tests.conftest import DIRECT_START, HANG_SECONDS
from tests.trainer.conftest import PROGRAMS

TINY: dict[str, Any] = {"n_resblocks": 1, "n_feats": 8, "batch_size": 2, "patch_size": 8, "steps": 3}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_repeated_run_has_its_own_folder_and_the_same_result(photos: Path) -> None:
    config = TrainConfig.of(**TINY, data=str(photos), precision="fp32", memory_format="contiguous", scale=3)
    first, second = train(config), train(config)
    assert first.run != second.run
    assert first.run.parent == second.run.parent == Path("runs").absolute()
    assert first.psnr_db == pytest.approx(second.psnr_db, abs=1e-3)
    assert first.bicubic_psnr_db == second.bicubic_psnr_db
    record = json.loads((first.run / "run.json").read_text())
    assert (record["np"], record["library"]["flavour"], record["state"]) == (1, "none", "finished")


def test_run_folder_of_a_launcher_is_used_and_its_run_json_kept(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("given").mkdir()
    Path("given/run.json").write_text("the launcher's")
    monkeypatch.setenv("HVSCALE_RUN", "given")
    config = TrainConfig.of(**TINY, data=str(photos), precision="fp32")
    train(config)
    assert Path("given/run.json").read_text() == "the launcher's"
    assert len(Path("given/steps.jsonl").read_text().splitlines()) == 3
    with pytest.raises(RequestError, match="already holds a training run"):
        train(config)
    assert len(Path("given/steps.jsonl").read_text().splitlines()) == 3


def test_run_folder_that_cannot_be_created(photos: Path) -> None:
    Path("file").write_text("")
    with pytest.raises(RequestError, match=r"cannot write the run folder .*file/run: Not a directory"):
        train(TrainConfig.of(**TINY, data=str(photos), run=Path("file/run")))


def test_diverging_learning_rate(photos: Path) -> None:
    options = {**TINY, "steps": 200, "learning_rate": 1e9, "precision": "fp32", "run": Path("run")}
    with pytest.raises(RequestError, match=r"not finite in 3 steps in a row, up to step \d+: lower --learning-rate"):
        train(TrainConfig.of(**options, data=str(photos)))
    assert json.loads(Path("run/run.json").read_text())["state"] == "failed"


@pytest.mark.parametrize(("rank", "line"), [("0", True), ("1", False)])
def test_horovod_built_for_another_mpi_is_reported_once(photos: Path, rank: str, line: bool) -> None:
    """Under MPICH's mpiexec, with Horovod built for Open MPI, each process becomes its own job."""
    request = json.dumps({**TINY, "data": str(photos)})
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "train.py"), request],
        env={**os.environ, **DIRECT_START, "PMI_SIZE": "2", "PMI_RANK": rank},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == line * [
        "hvscale: a launcher of the MPICH family started 2 ranks, but Horovod sees 1: it is built for openmpi. "
        "Start it with that MPI's own mpirun, or with horovodrun --gloo, or build Horovod for this MPI"
    ]
