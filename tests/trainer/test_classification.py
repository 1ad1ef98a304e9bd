"""Training a classifier on class folders and on synthetic images."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hvscale.core.errors import RequestError
from hvscale.trainer import TrainConfig, train
from hvscale.trainer.checkpoints.trained_model import TrainedModel
from hvscale.trainer.config import flag
from hvscale.trainer.data.classes import class_folders, random_crop_box, training_crop, validation_crop
from hvscale.trainer.data.images import Pixels
from hvscale.trainer.inference.config import EvalConfig
from hvscale.trainer.inference.evaluate import classes_of, evaluate_trained, folder_for
from hvscale.trainer.tasks import classification
from tests.trainer.conftest import Ranks

# The model sees only the mean of each colour channel, which is enough to distinguish the classes.
OWN_MODEL = """
import os
from torch import nn, tensor
def colours(num_classes=3):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))
def always_two(num_classes=3):
    return colours(2)
def frozen(num_classes=3):
    return colours(num_classes).requires_grad_(False)
def half(num_classes=3):
    return colours(num_classes).half()
class With(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.net, self.change = colours(), change
    def forward(self, images):
        return self.change(self, self.net(images))
def with_features(num_classes=3):
    return With(lambda self, logits: (logits, logits[:, :2]))
def detached(num_classes=3):
    return With(lambda self, logits: logits.detach())
class OwnRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = colours()
        self.register_buffer("rank", tensor(0))
    def forward(self, images):
        if self.training:
            self.rank.fill_(int(os.environ["OMPI_COMM_WORLD_RANK"]))
            return self.net(images)
        return nn.functional.one_hot(self.rank, 3).float().expand(len(images), 3)
def own_rank(num_classes=3):
    return OwnRank()
def label_when_evaluated(num_classes=3):
    return With(lambda self, logits: logits if self.training else logits.argmax(1))
"""
SMALL: dict[str, Any] = {"image_size": 16, "batch_size": 4, "precision": "fp32", "memory_format": "contiguous"}


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ImageNet's layout, with red, green and blue: 8 training and 3 validation images of each."""
    random = np.random.default_rng(1)
    for part, count in (("train", 8), ("val", 3)):
        for channel, name in enumerate(("red", "green", "blue")):
            folder = tmp_path / "colours" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 90, (24, 30, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(folder / f"{number}.JPEG")
    (tmp_path / "own_colours.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "colours"


def test_classifier_learns_from_class_folders(classes: Path) -> None:
    config = TrainConfig.of(
        model="own_colours:colours", data=str(classes), epochs=15, learning_rate=0.5, workers=2, **SMALL
    )
    result = train(config)
    assert result.steps == 15 * (24 // 4)
    assert (result.top1, result.top5, result.validation_images) == (1.0, 1.0, 9)
    assert result.psnr_db is None
    assert "top-1 100.00%" in result.summary()


def test_trained_classifier_can_be_evaluated(classes: Path) -> None:
    """From the run folder, and from the weights file alone with the model's name."""
    config = TrainConfig.of(model="own_colours:colours", data=str(classes), steps=4, **SMALL)
    result = train(config)
    alone = classes.parent / "weights.pt"
    alone.write_bytes(result.model_file.read_bytes())
    for weights, model in ((result.run, None), (alone, "own_colours:colours")):
        again = evaluate_trained(EvalConfig(weights=weights, model=model, data=str(classes), image_size=16))
        assert (again.top1, again.top5, again.image_count) == (result.top1, result.top5, 9)
        assert again.psnr_db is None
    shutil.rmtree(classes / "train/red")
    shutil.rmtree(classes / "val/red")
    with pytest.raises(RequestError, match="has 2 classes, but the model was trained on 3"):
        evaluate_trained(EvalConfig(weights=result.run, data=str(classes), image_size=16))
    with pytest.raises(RequestError, match="a folder of images for each class: name it with --data"):
        evaluate_trained(EvalConfig(weights=result.run))


@pytest.mark.parametrize(("batches", "steps_per_epoch"), [(1, 6), (4, 1), (6, 1)])
def test_no_image_is_used_twice_in_an_epoch_however_many_batches_a_step_has(
    classes: Path, monkeypatch: pytest.MonkeyPatch, batches: int, steps_per_epoch: int
) -> None:
    """A step of four batches leaves out the other two of an epoch."""
    drawn: list[Path] = []

    def crop(file: Path, side: int, random: np.random.Generator) -> Pixels:
        drawn.append(file)
        return training_crop(file, side, random)

    monkeypatch.setattr(classification, "training_crop", crop)
    config = TrainConfig.of(
        model="own_colours:colours", data=str(classes), epochs=3, workers=0, batches_per_allreduce=batches, **SMALL
    )
    assert train(config).steps == 3 * steps_per_epoch
    del drawn[:4]  # the batch that is drawn before training, to choose the fastest format
    of_epoch = steps_per_epoch * batches * 4
    epochs = [drawn[start : start + of_epoch] for start in range(0, 3 * of_epoch, of_epoch)]
    assert [len(set(epoch)) for epoch in epochs] == [of_epoch] * 3
    assert epochs[0] != epochs[1]


def test_fewer_images_than_the_batches_of_a_step(classes: Path) -> None:
    config = TrainConfig.of(model="own_colours:colours", data=str(classes), epochs=3, batches_per_allreduce=7, **SMALL)
    with pytest.raises(RequestError, match=r"a step takes 28 images .* only 24: lower --batch-size or --batches-per-"):
        train(config)


def test_number_of_workers_does_not_change_the_losses(classes: Path) -> None:
    losses = []
    for workers in (0, 3):
        config = TrainConfig.of(model="own_colours:colours", data=str(classes), steps=8, workers=workers, **SMALL)
        run = train(config).run
        losses.append([json.loads(line)["loss"] for line in (run / "steps.jsonl").read_text().splitlines()])
    assert losses[0] == losses[1]


def test_two_ranks_count_each_validation_image_once(two_ranks: Ranks, classes: Path, tmp_path: Path) -> None:
    """Nine images are divided among two ranks as five and four."""
    request = {"model": "own_colours:colours", "data": str(classes), "steps": 60, "learning_rate": 0.5, **SMALL}
    done = two_ranks("train.py", json.dumps({**request, "run": str(tmp_path / "run")}))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["validation_images"], result["top1"]) == (9, 1.0)


def test_two_ranks_evaluate_the_model_of_rank_0(two_ranks: Ranks, classes: Path, tmp_path: Path) -> None:
    """With its own buffers rank 1 would find another class."""
    request = {"model": "own_colours:own_rank", "data": str(classes), "steps": 2, **SMALL}
    done = two_ranks("train.py", json.dumps({**request, "run": str(tmp_path / "run")}))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run/result.json").read_text())
    alone = evaluate_trained(EvalConfig(weights=tmp_path / "run", data=str(classes), image_size=16))
    assert found["top1"] == alone.top1


def test_torchvision_model_on_synthetic_images() -> None:
    options = {**SMALL, "image_size": 32, "batch_size": 2, "steps": 2, "num_classes": 7}
    result = train(TrainConfig.of(model="mobilenet_v3_small", data="synthetic", **options))
    assert result.top1 is None
    assert result.summary().startswith("speed:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "bundled"}, "needs images with classes"),
        ({"data": "nowhere"}, "--data nowhere: no such folder"),
        ({"data": "colours", "val_data": "typo"}, "^--val-data typo: no such folder"),
        ({"data": "colours/val/red"}, "a classifier needs a folder of images for each class"),
        ({"data": "colours", "n_feats": 8}, "mobilenet_v3_small has no option 'n_feats'"),
        ({"data": "colours", "batch_size": 25}, "a step takes 25 images over all ranks, but there are only 24"),
        ({"data": "colours", "val_data": "other"}, "have different classes: blue is only in one of them"),
        (
            {"data": "colours", "train_images": "1-3"},
            "--train-images is for super-resolution, and mobilenet_v3_small is",
        ),
        ({"data": "colours", "cache_gb": 5}, "--cache-gb is for super-resolution, and mobilenet_v3_small is"),
        ({"data": "synthetic", "cache_dir": Path("decoded")}, "--cache-dir is for super-resolution"),
        ({"data": "other"}, "--data other has one class, red: a classifier needs at least two"),
        ({"data": "gap"}, "--data gap has no training images of class cyan: add some, or remove its folder"),
        ({"data": "only"}, "--data only has a folder val but no folder train: add it"),
        ({"data": "synthetic", "scale": 4}, "--scale is for super-resolution, and mobilenet_v3_small is a classifier"),
        ({"data": "synthetic", "val_data": "colours"}, "--val-data does not apply to --data synthetic: leave it out"),
        ({"data": "colours", "num_classes": 3}, "--num-classes is for synthetic images, and colours has its own"),
    ],
)
def test_invalid_request(classes: Path, options: dict[str, Any], message: str) -> None:
    (classes.parent / "other/red").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(classes.parent / "other/red/0.png")
    shutil.copytree(classes / "val", classes.parent / "gap")
    shutil.copytree(classes / "val", classes.parent / "only/val")
    (classes.parent / "gap/cyan").mkdir()
    with pytest.raises(RequestError, match=message):
        train(TrainConfig.of(**{"model": "mobilenet_v3_small", "steps": 1, **SMALL, **options}))
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("always_two", r" returned a tensor of shape \(4, 2\) for a batch; training needs a tensor of shape \(4, 3\)"),
        ("frozen", ": none of its parameters requires a gradient, so there is nothing to train"),
        ("half", ": its parameter 2.weight is float16, and training needs float32: remove its conversion.*"),
        (
            "with_features",
            r" returned a tuple \(a tensor of shape \(4, 3\), a tensor of shape \(4, 2\)\) for a batch; .* \(4, 3\)",
        ),
    ],
)
def test_a_user_s_model_that_cannot_be_trained(classes: Path, model: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"^own_colours:{model}{message}$"):
        train(TrainConfig.of(model=f"own_colours:{model}", data=str(classes), steps=1, **SMALL))


@pytest.mark.parametrize(
    ("model", "message"),
    [("resnet18", "Expected more than 1 value per channel"), ("alexnet", "Calculated padded input size")],
)
def test_images_that_do_not_suit_a_torchvision_model(tmp_path: Path, model: str, message: str) -> None:
    options = {**SMALL, "image_size": 4, "batch_size": 1, "num_classes": 2}
    with pytest.raises(
        RequestError, match=rf"^the model does not take a batch of 1 images of 4x4 pixels .*: {message}"
    ):
        train(TrainConfig.of(model=model, data="synthetic", steps=1, run=tmp_path / "run", **options))


def test_an_output_without_a_gradient_is_an_error(classes: Path) -> None:
    with pytest.raises(RequestError, match=r"^the model's output depends on no parameter that requires a gradient"):
        train(TrainConfig.of(model="own_colours:detached", data=str(classes), steps=1, **SMALL))


def test_an_evaluation_that_fails_leaves_the_trained_weights(classes: Path) -> None:
    model, run = "own_colours:label_when_evaluated", classes.parent / "run"
    with pytest.raises(RequestError, match=r"returned a tensor of shape \(4,\) for a batch; evaluation needs a tensor"):
        train(TrainConfig.of(model=model, data=str(classes), steps=1, run=run, **SMALL))
    assert (run / "model.pt").is_file()


@pytest.mark.parametrize(
    ("option", "value"), [("images", "1-2"), ("measure", "luma"), ("shave", 0), ("memory_gb", 0.5)]
)
def test_an_evaluation_ignores_no_option(option: str, value: Any) -> None:
    config = EvalConfig(weights=Path("w.pt"), data="colours", **{option: value})
    with pytest.raises(RequestError, match=f"^{flag(option)} is for super-resolution, and resnet50 is a classifier"):
        folder_for(config, TrainedModel("resnet50", {}, torch.nn.Identity()))


def test_truncated_image_is_named_during_training(classes: Path) -> None:
    cut = classes / "train/red/3.JPEG"
    cut.write_bytes(cut.read_bytes()[:200])
    with pytest.raises(RequestError, match=r"red/3\.JPEG cannot be decoded"):
        train(TrainConfig.of(model="own_colours:colours", data=str(classes), epochs=1, workers=2, **SMALL))


def test_labels_are_indices_of_the_sorted_folders(classes: Path) -> None:
    training, validation = class_folders(str(classes), None)
    assert training.classes == ["blue", "green", "red"]
    assert validation is not None
    shutil.rmtree(classes / "train")
    (classes / "val/.ipynb_checkpoints").mkdir()
    (classes / "val/red/.ipynb_checkpoints").mkdir()
    for hidden in ("._0.JPEG", ".ipynb_checkpoints/0-checkpoint.JPEG"):
        shutil.copy(classes / "val/red/0.JPEG", classes / "val/red" / hidden)
    assert classes_of(str(classes)) == validation
    assert {(file.parent.name, label) for file, label in validation.samples} == {("blue", 0), ("green", 1), ("red", 2)}


def test_crops_of_an_image(classes: Path) -> None:
    file = classes / "train/red/0.JPEG"
    again = [training_crop(file, 16, np.random.default_rng([1, 0, 5])) for _ in range(2)]
    assert np.array_equal(again[0], again[1])
    assert again[0].shape == validation_crop(file, 16).shape == (16, 16, 3)
    views = [training_crop(file, 16, np.random.default_rng([1, epoch, 5])) for epoch in range(2)]
    assert not np.array_equal(views[0], views[1])
    random = np.random.default_rng(2)
    for _ in range(200):
        left, top, right, bottom = random_crop_box(30, 24, random)
        assert 0 <= left < right <= 30
        assert 0 <= top < bottom <= 24
        assert 0.05 < (right - left) * (bottom - top) / (30 * 24) <= 1
    assert random_crop_box(300, 10, random) == (145, 0, 155, 10)  # no random crop fits


def test_crops_of_a_large_jpeg_keep_its_detail(tmp_path: Path) -> None:
    """They equal those of the same image in PNG, which is never decoded at a reduced size."""
    noise = np.random.default_rng(3).integers(0, 256, (171, 173), dtype=np.uint8).repeat(3, 0).repeat(3, 1)
    for name in ("noise.jpg", "noise.png"):
        Image.fromarray(noise[:511, :517]).save(tmp_path / name, quality=95)
    for seed in range(8):
        jpeg, png = (
            training_crop(tmp_path / name, 128, np.random.default_rng(seed)).astype(int)
            for name in ("noise.jpg", "noise.png")
        )
        assert abs(jpeg - png).mean() < 8
