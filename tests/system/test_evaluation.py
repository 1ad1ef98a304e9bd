"""`hvscale eval` and `hvscale upscale`: scores, images and errors."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as photos

from hvscale import models
from hvscale.trainer.data import resize
from tests.conftest import Run


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """Make a benchmark set of three real photos; two ranks get two and one of them."""
    for name, photo in (("astronaut", photos.astronaut()), ("coffee", photos.coffee()), ("rocket", photos.rocket())):
        hr = photo[100:180, 100:210]
        for part, pixels in (("HR", hr), ("LR_bicubic/X2", resize.shrink(hr, 2))):
            (tmp_path / "Set3" / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / "Set3" / part / f"{name}{'x2' if 'X2' in part else ''}.png")
    return tmp_path / "Set3"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Write a weights file in the public implementation's format, identified only by its shapes."""
    torch.manual_seed(1)
    file = tmp_path / "weights" / "edsr_x2.pt"
    file.parent.mkdir()
    torch.save(models.build("edsr-baseline", n_resblocks=2, n_feats=8).state_dict(), file)
    return file


def evaluate(hvscale_warm: Run, *words: object) -> dict[str, Any]:
    done = hvscale_warm("eval", *words, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "hvscale/eval/1"
    return document


def test_benchmark_set_gives_the_same_scores_tiled_and_on_two_ranks(
    hvscale: Run, hvscale_warm: Run, tmp_path: Path, benchmark: Path, weights: Path
) -> None:
    alone = evaluate(hvscale_warm, weights, "--data", benchmark, "--csv", "scores.csv")
    assert (alone["model"], alone["scale"], alone["measure"], alone["shave_pixels"]) == ("edsr-baseline", 2, "luma", 2)
    assert [image["name"] for image in alone["images"]] == ["astronaut", "coffee", "rocket"]
    assert alone["psnr_db"] == pytest.approx(np.mean([image["psnr_db"] for image in alone["images"]]))
    with (tmp_path / "scores.csv").open() as stream:
        assert [row["name"] for row in csv.DictReader(stream)] == ["astronaut", "coffee", "rocket"]
    tiled = evaluate(hvscale_warm, weights, "--data", benchmark, "--memory-gb", "0.004")
    done = hvscale(
        *("launch", "-np", 2, "--run", "job", "--"),
        *("hvscale", "eval", weights, "--data", benchmark, "--json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    two = json.loads((tmp_path / "job/logs/rank-00000.log").read_text())
    assert two["np"] == 2
    assert two["image_count"] == 3
    for other in (tiled, two):
        for ours, theirs in zip(alone["images"], other["images"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3)
    ensemble = evaluate(hvscale_warm, weights, "--data", benchmark, "--self-ensemble")
    assert ensemble["psnr_db"] != alone["psnr_db"]
    assert "PSNR" in hvscale_warm("eval", weights, "--data", benchmark).stdout


def test_evaluation_repeats_the_scores_of_training(hvscale_warm: Run, tmp_path: Path) -> None:
    """A run folder and a checkpoint both contain the model's name and options."""
    tiny = ("--n-resblocks", 1, "--n-feats", 8, "--batch-size", 2, "--patch-size", 16, "--steps", 3, "--scale", 3)
    fixed = ("--precision", "fp32", "--memory-format", "contiguous")
    done = hvscale_warm("train", "edsr", *tiny, *fixed, "--holdout", "coffee", "--checkpoint-every", 2, "--run", "job")
    assert done.returncode == 0, done.stderr
    (tmp_path / "photos").mkdir()
    Image.fromarray(photos.coffee()).save(tmp_path / "photos/coffee.png")
    trained = json.loads((tmp_path / "job/result.json").read_text())
    for given in ("job", "job/model.pt", "job/checkpoints/step-000000003.ckpt"):
        again = evaluate(hvscale_warm, given, "--data", "photos")
        assert (again["model"], again["measure"], again["shave_pixels"]) == ("edsr", "rgb", 9)
        assert again["psnr_db"] == pytest.approx(trained["psnr_db"], abs=1e-3)
        assert again["ssim"] == pytest.approx(trained["ssim"], abs=1e-4)
        assert again["bicubic_psnr_db"] == pytest.approx(trained["bicubic_psnr_db"], abs=1e-6)
    Image.fromarray(photos.coffee()[:29, :29]).save(tmp_path / "photos/coffee.png")  # cropped to 27x27
    done = hvscale_warm("eval", "job", "--data", "photos")
    assert (done.returncode, "is 29x29: it must have at least 30x30 pixels" in done.stderr) == (2, True)


def test_upscale_writes_images(hvscale: Run, hvscale_warm: Run, tmp_path: Path, weights: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was turned by 90 degrees
    Image.fromarray(photos.rocket()[:50, :70]).rotate(90, expand=True).save(tmp_path / "rocket.jpg", exif=turned)
    Image.fromarray(photos.camera()[:40, :40]).save(tmp_path / "grey.png")
    icon = Image.fromarray(photos.rocket()[:30, :40])
    icon.putalpha(Image.linear_gradient("L").resize(icon.size))
    icon.save(tmp_path / "icon.png")
    done = hvscale("upscale", "rocket.jpg", "grey.png", "icon.png", "--weights", weights, "--output", "out")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "out/iconx2.png") as picture:
        assert (picture.size, picture.mode) == ((80, 60), "RGBA")
        column = np.asarray(picture.getchannel("A"))[:, 40].astype(int)
        assert column[0] < 10
        assert column[-1] > 245
        assert (np.diff(column) >= 0).all()
    with Image.open(tmp_path / "out/rocketx2.png") as picture, Image.open(tmp_path / "out/greyx2.png") as grey:
        assert (picture.size, picture.mode, grey.size) == ((140, 100), "RGB", (80, 80))
    before = (tmp_path / "out/rocketx2.png").read_bytes()
    lost = hvscale_warm("upscale", "rocket.jpg", "out/rocketx2.png", "--weights", weights, "--output", "out")
    assert (lost.returncode, "out/rocketx2.png is one of the given images" in lost.stderr) == (2, True)
    assert (tmp_path / "out/rocketx2.png").read_bytes() == before
    (tmp_path / "rocket.png").write_bytes((tmp_path / "icon.png").read_bytes())
    twice = hvscale_warm("upscale", "rocket.jpg", tmp_path / "rocket.png", "--weights", weights)
    assert (twice.returncode, "two images would be written to" in twice.stderr) == (2, True)
    assert hvscale_warm("upscale", "rocket.jpg", "--weights", weights, "--self-ensemble").returncode == 0
    assert (tmp_path / "rocketx2.png").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval", "nowhere.pt"), "cannot read the weights nowhere.pt"),
        (("eval", "weights/edsr_x2.pt", "--data", "nowhere"), "nowhere: no such folder"),
        (("eval", "weights/edsr_x2.pt", "--scale", "3"), "does not fit the model"),
        (("eval", "weights/edsr_x2.pt", "--memory-gb", "0.0001"), "--memory-gb 0.0001: this model needs at least"),
        (("eval", "weights"), "holds no model.pt and no checkpoints"),
        (("eval", "weights/other.pt"), "does not contain the model's name: add --model"),
        (("upscale", "none.png", "--weights", "weights/edsr_x2.pt"), "none.png: No such file or directory"),
    ],
)
def test_invalid_request_is_one_line(hvscale_warm: Run, weights: Path, words: tuple[str, ...], message: str) -> None:
    torch.save({"weight": torch.zeros(2)}, weights.parent / "other.pt")
    done = hvscale_warm(*words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
