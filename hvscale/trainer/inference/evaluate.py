"""Evaluates a trained model on a data set, on a launcher's ranks or in a single process."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hvscale import models
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.files import is_folder
from hvscale.trainer.checkpoints.trained_model import TrainedModel, load_trained_model
from hvscale.trainer.config import BUNDLED, refuse_given
from hvscale.trainer.data import pairs
from hvscale.trainer.data.classes import ClassFolder, class_folders, read_class_folder
from hvscale.trainer.data.sources import (
    DIV2K_VALIDATION,
    ImageSet,
    image_numbers,
    image_set,
    parse_range,
    select_numbers,
)
from hvscale.trainer.inference.config import EvalConfig
from hvscale.trainer.inference.metrics import Measure, benchmark_measure, div2k_measure
from hvscale.trainer.inference.super_resolution_evaluation import PhotoScore, score_photos
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.resources import share_cores
from hvscale.trainer.tasks.classification import accuracy, refuse_photo_options
from hvscale.trainer.tasks.same_images import require_same_images

MIN_MEASURED_SIDE = 11  # pixels left after shaving: SSIM's window


class ImageScore(BaseModel):
    """PSNR and SSIM of one image."""

    name: str
    psnr_db: float | None
    """None if the images are identical."""
    ssim: float
    bicubic_psnr_db: float | None
    bicubic_ssim: float


class Accuracy(BaseModel):
    """A classifier's accuracy, from 0 to 1."""

    image_count: int
    top1: float
    top5: float


class EvalResult(VersionedDocument):
    model_config = ConfigDict(protected_namespaces=(), use_attribute_docstrings=True)

    schema_: Literal["hvscale/eval/1"] = "hvscale/eval/1"
    model: str
    data: str
    np: int
    image_count: int
    scale: int | None = None
    measure: Literal["rgb", "luma"] | None = None
    shave_pixels: int | None = None
    self_ensemble: bool | None = None
    psnr_db: float | None = None
    """The mean over the images; None if it is infinite, because one is identical."""
    ssim: float | None = None
    bicubic_psnr_db: float | None = None
    bicubic_ssim: float | None = None
    images: list[ImageScore] = []
    top1: float | None = None
    """Top-1 accuracy, from 0 to 1."""
    top5: float | None = None
    """Top-5 accuracy, from 0 to 1."""

    def rows(self) -> Sequence[BaseModel]:
        """The rows of a CSV file: a row for each image, or one for a classifier."""
        if self.top1 is None or self.top5 is None:
            return self.images
        return [Accuracy(image_count=self.image_count, top1=self.top1, top5=self.top5)]


def evaluate_trained(config: EvalConfig) -> EvalResult:
    """The evaluation result, the same on every rank.

    Raises RequestError, on all ranks, for unusable weights or images.
    """
    ranks = Ranks()
    share_cores(ranks, config.threads)
    trained = ranks.all_or_fail(lambda: load_trained_model(config.weights, config.model, options_for(config)))
    trained.module.to(ranks.device())
    with ranks.end_if_a_rank_is_lost():
        if models.find(trained.name).task == "classification":
            return classifier_result(config, trained, ranks)
        return super_resolution_result(config, trained, ranks)


def options_for(config: EvalConfig) -> dict[str, Any]:
    """The model's options. A classifier's number of classes comes from the data."""
    if config.model is None or models.find(config.model).task != "classification":
        return config.model_options()
    return {**config.model_options(), "num_classes": len(classes_of(config.data).classes)}


def classes_of(data: str) -> ClassFolder:
    """DATA/val if it exists, else all of DATA. Raises RequestError if it has no classes."""
    if data == BUNDLED:
        raise RequestError("a classifier is evaluated on a folder of images for each class: name it with --data")
    if is_folder(Path(data, "val")) and not is_folder(Path(data, "train")):
        return read_class_folder(Path(data, "val"), f"--data {data}")
    training, validation = class_folders(data, None)
    return validation or training


def folder_for(config: EvalConfig, trained: TrainedModel) -> ClassFolder:
    """Raises RequestError if it does not have the classes that the model tells apart, and for an
    option that a classifier would ignore.
    """
    refuse_photo_options(config, trained.name, ("images", "measure", "shave", "self_ensemble", "memory_gb"))
    folder, trained_classes = classes_of(config.data), trained.options.get("num_classes")
    if trained_classes is not None and len(folder.classes) != trained_classes:
        raise RequestError(
            f"--data {config.data} has {len(folder.classes)} classes, but the model was trained on {trained_classes}: "
            "name a folder with the same classes"
        )
    return folder


def classifier_result(config: EvalConfig, trained: TrainedModel, ranks: Ranks) -> EvalResult:
    folder = ranks.all_or_fail(lambda: folder_for(config, trained))
    require_same_images(ranks, f"--data {config.data}", folder.names)
    side = config.image_size or models.find(trained.name).side
    top1, top5 = accuracy(trained.name, trained.module, folder, side, config.batch_size, ranks)
    count = len(folder.samples)
    return EvalResult(model=trained.name, data=config.data, np=ranks.size, image_count=count, top1=top1, top5=top5)


def super_resolution_result(config: EvalConfig, trained: TrainedModel, ranks: Ranks) -> EvalResult:
    scale = int(trained.options["scale"])
    chosen = ranks.all_or_fail(lambda: images_of(config, trained.name, scale))
    measure = measure_of(config, chosen, scale)
    # A multiple of the scale, to which images are cropped.
    smallest = -(-(2 * measure.shave + MIN_MEASURED_SIDE) // scale) * scale
    # Each image is used once, by one rank, so caching would not help.
    photos = ranks.all_or_fail(lambda: [pairs.lazy_photo(pair, scale, smallest) for pair in chosen.pairs])
    require_same_images(ranks, f"--data {config.data}", pairs.names_and_sizes(photos))
    found = score_photos(trained.module, photos, scale, measure, ranks, config.memory_gb * 1e9, config.self_ensemble)
    return EvalResult(
        model=trained.name,
        data=chosen.title,
        np=ranks.size,
        image_count=len(found),
        scale=scale,
        measure="luma" if measure.luma else "rgb",
        shave_pixels=measure.shave,
        self_ensemble=config.self_ensemble,
        psnr_db=finite(fmean(score.psnr_db for score in found)),
        ssim=fmean(score.ssim for score in found),
        bicubic_psnr_db=finite(fmean(score.bicubic_psnr_db for score in found)),
        bicubic_ssim=fmean(score.bicubic_ssim for score in found),
        images=[image_score(score) for score in found],
    )


def images_of(config: EvalConfig, model: str, scale: int) -> ImageSet:
    """Raises RequestError for unusable images, and for an option of classifiers."""
    refuse_given(config, ("batch_size", "image_size"), f"is for classifiers, and {model} is for super-resolution")
    found = image_set(config.data, scale)
    chosen = parse_range("--images", config.images)
    if chosen is None and found.layout == "div2k":
        chosen = DIV2K_VALIDATION
    return found if chosen is None else select_numbers(found, image_numbers(found), chosen)


def measure_of(config: EvalConfig, chosen: ImageSet, scale: int) -> Measure:
    luma = chosen.layout == "benchmark" if config.measure == "auto" else config.measure == "luma"
    usual = benchmark_measure(scale) if luma else div2k_measure(scale)
    return usual if config.shave is None else Measure(config.shave, luma)


def image_score(score: PhotoScore) -> ImageScore:
    values: dict[str, Any] = {**vars(score)}
    return ImageScore(**{**values, "psnr_db": finite(score.psnr_db), "bicubic_psnr_db": finite(score.bicubic_psnr_db)})


def finite(value: float) -> float | None:
    """None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
