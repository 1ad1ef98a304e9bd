"""`hvscale data`: the commands on real photos."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from skimage import data as photos

from hvscale.trainer.data import resize
from tests.conftest import Run


@pytest.fixture
def div2k(tmp_path: Path) -> Path:
    """Make a folder of three real photos with DIV2K's names, high resolution only."""
    hr = tmp_path / "DIV2K/DIV2K_train_HR"
    hr.mkdir(parents=True)
    for number, photo in enumerate((photos.astronaut(), photos.coffee(), photos.rocket()), start=1):
        Image.fromarray(photo[:301, :403]).save(hr / f"{number:04d}.png")
    return tmp_path / "DIV2K"


def problems_found(hvscale: Run, data: Path, status: int = 2) -> list[tuple[str, str]]:
    done = hvscale("data", "check", data, "--json")
    assert done.returncode == status, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "hvscale/data-check/1"
    return [(problem["kind"], Path(problem["file"]).name) for problem in document["problems"]]


def test_generated_low_resolution_images_pass_the_check(hvscale: Run, div2k: Path) -> None:
    done = hvscale("data", "make-lr", div2k / "DIV2K_train_HR", "--scale", "2,4")
    assert done.returncode == 0, done.stderr
    assert "made 6 images" in done.stderr
    lr = div2k / "DIV2K_train_LR_bicubic"
    assert sorted(file.name for file in lr.glob("*/*")) == sorted(f"000{n}x{s}.png" for n in (1, 2, 3) for s in (2, 4))
    expected = resize.shrink(np.asarray(Image.open(div2k / "DIV2K_train_HR/0002.png"))[:300, :400], 4)
    assert np.array_equal(np.asarray(Image.open(lr / "X4/0002x4.png")), expected)
    (lr / "X2/0001x2.png").unlink()
    assert "made 1 image" in hvscale("data", "make-lr", div2k / "DIV2K_train_HR", "--scale", "2").stderr
    done = hvscale("data", "check", div2k, "--csv", "problems.csv")
    assert (done.returncode, done.stdout.strip()) == (0, "9 images, all good")
    assert (div2k.parent / "problems.csv").read_text() == "file,kind,detail\n"


def test_every_kind_of_problem_is_found(hvscale: Run, div2k: Path) -> None:
    hr, lr = div2k / "DIV2K_train_HR", div2k / "DIV2K_train_LR_bicubic/X2"
    for number in range(4, 9):
        (hr / f"{number:04d}.png").write_bytes((hr / "0001.png").read_bytes())
    assert hvscale("data", "make-lr", hr, "--scale", "2").returncode == 0
    (hr / "0001.png").write_bytes((hr / "0001.png").read_bytes()[:-5000])
    (lr / "0002x2.png").write_bytes((lr / "0003x2.png").read_bytes())  # another photo of the same size
    Image.new("RGB", (100, 150)).save(lr / "0003x2.png")
    Image.fromarray(photos.camera()[:301, :403]).save(hr / "0004.png")
    Image.fromarray(resize.imresize(photos.camera()[:300, :402], 150, 201)).convert("RGB").save(lr / "0004x2.png")
    sixteen_bit_rgb(hr / "0005.png", np.asarray(Image.open(hr / "0005.png")))
    Image.open(hr / "0006.png").crop((0, 0, 403, 100)).save(hr / "0006.png")
    Image.open(lr / "0006x2.png").crop((0, 0, 201, 50)).save(lr / "0006x2.png")
    (lr / "0007x2.png").unlink()
    (lr / "0008x2.png").write_bytes(b"")
    problems = problems_found(hvscale, div2k)
    assert sorted(problems) == [
        ("16-bit", "0005.png"),
        ("grey", "0004.png"),
        ("mismatched", "0002x2.png"),
        ("mismatched", "0003x2.png"),
        ("missing", "0007x2.png"),
        ("too small", "0006.png"),
        ("truncated", "0001.png"),
        ("truncated", "0008x2.png"),
    ]
    table = hvscale("data", "check", div2k)
    assert table.returncode == 2
    assert "8 problems in 16 images" in table.stderr
    assert "201x150" in table.stdout
    Image.open(hr / "0006.png").crop((0, 0, 403, 31)).save(hr / "0006.png")
    small = hvscale("data", "check", hr, "--patch-size", "4")
    assert "403x31: too small for every scale, with low-resolution images of at least 16x16" in small.stdout


def sixteen_bit_rgb(file: Path, pixels: Any) -> None:
    """Write a 16-bit RGB PNG, which Pillow cannot write."""
    height, width = pixels.shape[:2]
    rows = (pixels.astype(">u2") * 257).tobytes()
    lines = b"".join(b"\0" + rows[row * width * 6 : (row + 1) * width * 6] for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def test_check_of_class_folders(hvscale: Run, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / f"pets/train/{name}").mkdir(parents=True)
        Image.fromarray(photos.chelsea()).save(tmp_path / f"pets/train/{name}/1.jpg")
    assert problems_found(hvscale, tmp_path / "pets", status=0) == []
    truncated = tmp_path / "pets/train/dog/1.jpg"
    truncated.write_bytes(truncated.read_bytes()[:9000])
    assert problems_found(hvscale, tmp_path / "pets") == [("truncated", "1.jpg")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "nowhere"), "hvscale: nowhere: no such folder"),
        (("check", "."), "hvscale: .: a classifier needs a folder of images for each class"),
        (("check", ".", "--csv", "missing/a.csv"), "cannot write missing/a.csv: No such file or directory"),
        (("make-lr", "nowhere"), "nowhere: no such folder"),
        (("make-lr", "."), "no images in it"),
        (("make-lr", ".", "--scale", "5"), "--scale 5: expected any of 2, 3, 4"),
    ],
)
def test_invalid_request_is_one_line(hvscale: Run, words: tuple[str, ...], message: str) -> None:
    done = hvscale("data", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr
