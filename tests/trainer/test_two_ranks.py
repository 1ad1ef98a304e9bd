"""Training on two real ranks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Ranks

TINY = {"n_resblocks": 1, "n_feats": 8, "batch_size": 2, "patch_size": 8, "memory_format": "contiguous"}


def request(photos: Path, run: Path, **options: Any) -> str:
    return json.dumps({**TINY, "data": str(photos), "run": str(run), "steps": 5, **options})


@pytest.mark.parametrize("launcher", ["openmpi", "gloo"])
def test_run_folder_is_complete(two_ranks: Ranks, photos: Path, tmp_path: Path, launcher: str) -> None:
    run = tmp_path / "run"
    done = two_ranks("train.py", request(photos, run), launcher=launcher)
    assert done.returncode == 0, done.stderr
    result = json.loads((run / "result.json").read_text())
    assert (result["schema"], result["np"], result["steps"], result["holdout"]) == ("hvscale/train/1", 2, 5, "c")
    assert result["images_per_second"] == pytest.approx(sum(result["images_per_second_by_rank"]))
    record = json.loads((run / "run.json").read_text())
    assert (record["state"], record["exit_status"], record["library"]["flavour"]) == ("finished", 0, launcher)
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert [(step["step"], step["steps"], step["images"]) for step in steps] == [(n, 5, 4) for n in range(1, 6)]
    assert all(step["communication_seconds"] > 0 for step in steps)
    assert (run / "model.pt").is_file()
    assert (run / "picture.png").is_file()
    assert "autocast" in done.stdout + done.stderr  # rank 0 reports the chosen precision


def test_ranks_average_gradients_and_stay_equal(two_ranks: Ranks, photos: Path, tmp_path: Path) -> None:
    done = two_ranks("equality.py", photos, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gradients_differ_by"] < 1e-4
    assert found["parameters_equal"]
    assert found["buffers"] == 2 * [[[True, False], [[0, 0, 0], [0, 0, 0]]]]
    assert found["extra_states"] == [3, 3]


def test_full_disk_ends_all_ranks_with_one_line(two_ranks: Ranks, photos: Path, tmp_path: Path) -> None:
    done = two_ranks(
        "train.py", request(photos, tmp_path / "run", steps=10_000, precision="fp32", disk_bytes=20_000, cache_gb=0)
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("hvscale:")]
    assert lines == [
        f"hvscale: cannot write the run folder {tmp_path}/run: File too large. Choose another with --run, or make room"
    ]
    assert "Traceback" not in done.stderr
    whole = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()[:-1]
    assert [json.loads(line)["step"] for line in whole] == list(range(1, len(whole) + 1))


def test_a_rank_without_a_cache_trains_with_one_that_has_it(two_ranks: Ranks, photos: Path, tmp_path: Path) -> None:
    cache, run = tmp_path / "cache", tmp_path / "run"
    options = {"cache_dir": str(cache), "precision": "fp32", "on_rank_1": {"cache_gb": 0}}
    done = two_ranks("train.py", request(photos, run, **options))
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "result.json").read_text())["steps"] == 5
    assert list(cache.glob("*.npy"))


def test_ranks_with_other_images_end_in_one_line(two_ranks: Ranks, photos: Path, tmp_path: Path) -> None:
    fewer, renamed = tmp_path / "fewer", tmp_path / "renamed"
    shutil.copytree(photos, fewer)
    shutil.copytree(photos, renamed)
    (fewer / "a.png").unlink()
    (renamed / "a.png").rename(renamed / "d.png")
    for other, how in (
        (fewer, "2 images on rank 1 and 3 on rank 0"),
        (renamed, "images of other names or sizes on rank 1 than on rank 0"),
    ):
        done = two_ranks("train.py", request(photos, tmp_path / "run", on_rank_1={"data": str(other)}))
        assert done.returncode == 2
        lines = [line for line in done.stderr.splitlines() if line.startswith("hvscale:")]
        assert lines == [f"hvscale: --data {photos} has {how}: give all ranks the same images"]


def test_ranks_with_other_classes_of_images_end_in_one_line(two_ranks: Ranks, photos: Path, tmp_path: Path) -> None:
    for root, count in (("all", 3), ("part", 2)):
        for label in ("bird", "cat"):
            folder = tmp_path / root / "train" / label
            folder.mkdir(parents=True)
            for photo in sorted(photos.iterdir())[:count]:
                shutil.copy(photo, folder)
            shutil.copytree(photos, tmp_path / root / "val" / label)
    (tmp_path / "part" / "val" / "cat" / "a.png").unlink()
    options = {"model": "resnet50", "data": str(tmp_path / "all"), "run": str(tmp_path / "run"), "batch_size": 1}
    done = two_ranks("train.py", json.dumps({**options, "on_rank_1": {"data": str(tmp_path / "part")}}))
    assert done.returncode == 2
    assert f"--data {tmp_path}/all has 9 images on rank 1 and 12 on rank 0" in done.stderr


def test_damaged_photo_is_reported_once(two_ranks: Ranks, photos: Path, tmp_path: Path) -> None:
    cut = photos / "b.png"
    cut.write_bytes(cut.read_bytes()[:2000])
    done = two_ranks("train.py", request(photos, tmp_path / "run"))
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if str(cut) in line] == [
        f"hvscale: {cut} cannot be decoded (truncated or not an image): replace or remove it"
    ]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
