"""Upscales images with a trained model."""

from collections.abc import Callable
from pathlib import Path

from PIL import Image

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import write_atomically
from hvscale.trainer.checkpoints.trained_model import load_trained_model
from hvscale.trainer.data.images import decode, size_of
from hvscale.trainer.inference.config import UpscaleConfig
from hvscale.trainer.inference.super_resolution_evaluation import super_resolve
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.resources import share_cores


def upscale(config: UpscaleConfig, done: Callable[[Path, Path], None]) -> None:
    """Write NAMEx2.png for each image and call `done(image, picture)`. Under a launcher the ranks
    share the images.

    Raises RequestError: before anything is computed, for files that are not images and unusable
    weights; later for a truncated image, an output folder that cannot be written, and a memory
    limit that is too small.
    """
    ranks = Ranks()
    share_cores(ranks, config.threads)
    trained = ranks.all_or_fail(lambda: load_trained_model(config.weights, config.model, config.model_options()))
    if models.find(trained.name).task != "super-resolution":
        ranks.fail(RequestError(f"{trained.name} is a classifier: upscaling needs a super-resolution model"))
    scale = int(trained.options["scale"])
    targets = [(config.output or image.parent) / f"{image.stem}x{scale}.png" for image in config.images]

    def check() -> None:
        for image, target in zip(config.images, targets, strict=True):
            size_of(image)
            if targets.count(target) > 1:
                raise RequestError(
                    f"two images would be written to {target}: upscale them one at a time, with different --output"
                )

    ranks.all_or_fail(check)
    trained.module.to(ranks.device())

    def enlarge() -> None:
        for image, target in list(zip(config.images, targets, strict=True))[ranks.rank :: ranks.size]:
            pixels = super_resolve(trained.module, decode(image), scale, config.memory_gb * 1e9, config.self_ensemble)
            picture = Image.fromarray(pixels)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, lambda stream, picture=picture: picture.save(stream, "PNG"))  # type: ignore[misc]
            except OSError as error:
                raise RequestError(
                    f"cannot write {target}: {error.strerror}. Choose another folder with --output"
                ) from error
            done(image, target)

    ranks.all_or_fail(enlarge)
