"""Image classification: class folders or synthetic images, cross-entropy, top-1 and top-5."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.trainer.checkpoints.trained_model import read_weights
from hvscale.trainer.config import BUNDLED, SYNTHETIC, TrainConfig, refuse_given
from hvscale.trainer.data.batches import EpochOrder, Position
from hvscale.trainer.data.cache import CACHE_OPTIONS
from hvscale.trainer.data.classes import (
    ClassFolder,
    class_folders,
    require_images_of_classes,
    training_crop,
    validation_crop,
)
from hvscale.trainer.data.images import Pixels
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.tasks.same_images import named_data, require_same_images

# Mean and standard deviation of ImageNet's pixels in 0..1, as torchvision's weights expect.
MEAN_RGB, STD_RGB = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET_CLASSES = 1000
# Loss weight of GoogLeNet's and Inception's auxiliary classifiers (Szegedy et al., 2015).
AUXILIARY_WEIGHT = 0.3
SYNTHETIC_BATCHES_PER_EPOCH = 1000


def refuse_photo_options(config: BaseModel, model: str, fields: Sequence[str]) -> None:
    """Raises RequestError for an option that a classifier would ignore."""
    refuse_given(config, fields, f"is for super-resolution, and {model} is a classifier")


class Classification:
    # 0.1 for 256 images (Goyal et al., 2017), scaled to 32 images as in Horovod's ImageNet example.
    learning_rate, optimizer = 0.0125, "sgd"
    loss_decimals = 3

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        """Collective. Raises RequestError, on all ranks, for unusable folders."""
        self.config, self.ranks, self.title = config, ranks, config.model
        self.side = config.image_size or ranks.all_or_fail(lambda: models.find(config.model)).side
        self.training: ClassFolder | None = None
        self.validation: ClassFolder | None = None
        ranks.all_or_fail(self._refuse_ignored_options)  # the options of the cache may differ between ranks
        if config.data == SYNTHETIC:
            self.classes = config.num_classes or IMAGENET_CLASSES
            self.steps_per_epoch = max(1, SYNTHETIC_BATCHES_PER_EPOCH // config.batches_per_allreduce)
            random = np.random.default_rng([config.seed, ranks.rank])
            pixels = random.integers(0, 256, (config.batch_size, 3, self.side, self.side), dtype=np.uint8)
            labels = random.integers(0, self.classes, config.batch_size)
            self.synthetic = torch.from_numpy(pixels), torch.from_numpy(labels)
        else:
            self.training, self.validation = ranks.all_or_fail(lambda: class_folders(config.data, config.val_data))
            training = self.training
            validation_names = [f"validation/{name}" for name in self.validation.names] if self.validation else []
            require_same_images(ranks, named_data(config), [*training.names, *validation_names])
            ranks.all_or_fail(lambda: require_images_of_classes(training, config.data))
            self.classes = len(training.classes)
            samples = len(training.samples)
            images_per_step = config.batch_size * config.batches_per_allreduce * ranks.size
            self.order = ranks.all_or_fail(lambda: EpochOrder(samples, config.seed, images_per_step))
            self.steps_per_epoch = self.order.steps_per_epoch
        self.model_options: dict[str, Any] = {"num_classes": self.classes, **config.edsr_options()}
        self.needs_prefetch = self.training is not None

    def _refuse_ignored_options(self) -> None:
        config = self.config
        fields = ("scale", "patch_size", "train_images", "val_images", "holdout")
        refuse_photo_options(config, config.model, (*fields, *CACHE_OPTIONS))
        if config.data == BUNDLED:
            raise RequestError(
                f"{config.model} needs images with classes: set --data to a folder of class folders, or to synthetic"
            )
        if config.data == SYNTHETIC:
            refuse_given(config, ("val_data",), "does not apply to --data synthetic")
        else:
            refuse_given(config, ("num_classes",), f"is for synthetic images, and {config.data} has its own classes")

    def build_model(self) -> nn.Module:
        model = models.build(self.config.model, **self.model_options)
        if self.config.weights is not None:
            models.load_state(model, read_weights(self.config.weights)[1], str(self.config.weights))
        return model

    def load_batch(self, batch: int) -> tuple[Tensor, Tensor]:
        """Images (batch, 3, side, side) as bytes, and labels (batch,).

        Raises RequestError as `training_crop` does.
        """
        if self.training is None:
            return self.synthetic
        crops, labels = [], []
        step, own = divmod(batch, self.config.batches_per_allreduce)
        for sample in self.order.samples_of(step, own * self.ranks.size + self.ranks.rank, self.config.batch_size):
            file, label = self.training.samples[sample.index]
            random = np.random.default_rng([self.config.seed, sample.epoch, sample.index])
            crops.append(training_crop(file, self.side, random))
            labels.append(label)
        return to_batch(crops), torch.tensor(labels)

    def to_device(self, loaded: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
        images, labels = loaded
        return normalise(images.to(device)), labels.to(device)

    def data_position(self, step: int) -> dict[str, int]:
        return {} if self.training is None else asdict(self.order.position(step))

    def resume_at(self, step: int, position: dict[str, int]) -> int:
        return self.order.resume(step, Position(**position)) if position and self.training is not None else step

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Cross-entropy of the logits plus weighted losses of auxiliary classifiers, if any.

        Raises RequestError if the model returned no logit for each class.
        """
        logits, *auxiliary = all_logits(self.config.model, output, (len(targets), self.classes), "training")
        total = cross_entropy(logits.float(), targets)
        for extra_logits in auxiliary:
            total = total + AUXILIARY_WEIGHT * cross_entropy(extra_logits.float(), targets)
        return total

    def evaluate(self, model: nn.Module, run: RunFolder) -> dict[str, Any]:
        if self.validation is None:
            return {}
        top1, top5 = accuracy(self.config.model, model, self.validation, self.side, self.config.batch_size, self.ranks)
        return {"top1": top1, "top5": top5, "validation_images": len(self.validation.samples)}


def all_logits(model: str, output: Any, shape: tuple[int, int], use: str) -> list[Tensor]:
    """The logits, then those of auxiliary classifiers, if any.

    Raises RequestError if one of them is no tensor of this shape.
    """
    first, *others = output if isinstance(output, tuple) and output else (output,)
    found = [first, *(other for other in others if other is not None)]
    if any(not isinstance(logits, Tensor) or logits.shape != shape for logits in found):
        raise models.wrong_output(model, output, shape, use)
    return found


def accuracy(
    name: str, model: nn.Module, validation: ClassFolder, side: int, batch_size: int, ranks: Ranks
) -> tuple[float, float]:
    """Top-1 and top-5 accuracy as fractions, computed in fp32; the same on all ranks. Collective.

    The images are divided among the ranks; each is counted once. Raises RequestError, on all ranks,
    if the model returns no logit for each class. `name` is its name in errors.
    """
    top1, top5 = 0, 0
    device = next(model.parameters()).device
    own = validation.samples[ranks.rank :: ranks.size]

    def count() -> None:
        nonlocal top1, top5
        for start in range(0, len(own), batch_size):
            samples = own[start : start + batch_size]
            images = to_batch([validation_crop(file, side) for file, _ in samples]).to(device)
            labels = torch.tensor([label for _, label in samples], device=device)
            with torch.inference_mode():
                output = model(normalise(images))
            logits = all_logits(name, output, (len(samples), len(validation.classes)), "evaluation")[0].float()
            hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
            top1 += int(hits[:, 0].sum())
            top5 += int(hits.sum())

    with models.evaluation_mode(model):
        ranks.all_or_fail(count)
    counts = ranks.allgather((top1, top5, len(own)))
    total = sum(images for _, _, images in counts)
    return sum(count for count, _, _ in counts) / total, sum(count for _, count, _ in counts) / total


def to_batch(crops: list[Pixels]) -> Tensor:
    return torch.from_numpy(np.stack(crops).transpose(0, 3, 1, 2))


def normalise(images: Tensor) -> Tensor:
    """Bytes to floats with the mean and standard deviation that torchvision's models expect."""
    mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) * 255 for values in (MEAN_RGB, STD_RGB))
    return (images.float() - mean) / std
