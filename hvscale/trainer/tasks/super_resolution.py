"""Super-resolution: random crops of photos, mean absolute error, PSNR on held-out photos."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, cannot_write, write_atomically
from hvscale.trainer.checkpoints.trained_model import read_weights
from hvscale.trainer.config import BUNDLED, PUBLIC_EPOCH_BATCHES, SYNTHETIC, TrainConfig, refuse_given
from hvscale.trainer.data import pairs
from hvscale.trainer.data.cache import CACHE_OPTIONS, DecodedCache, LazyImage, default_folder
from hvscale.trainer.data.crops import Crops
from hvscale.trainer.data.pairs import MIN_LR_SIDE, Photo, names_and_sizes
from hvscale.trainer.data.sources import ImageSet, image_numbers, image_set, parse_range, select_numbers, split
from hvscale.trainer.inference.metrics import Measure, benchmark_measure, div2k_measure
from hvscale.trainer.inference.super_resolution_evaluation import compare, mean_psnr_db, score_photos, side_by_side
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.tasks.same_images import named_data, require_same_images


class SuperResolution:
    learning_rate, optimizer = 1e-4, "adam"  # as in the public EDSR code (Lim et al., 2017)
    loss_decimals = 2

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        """Collective. Raises RequestError, on all ranks, for unusable images."""
        self.config, self.ranks = config, ranks
        ranks.all_or_fail(self._refuse_ignored_options)  # the options of the cache may differ between ranks
        self.title = f"{config.model} x{config.scale}"
        self.steps_per_epoch = max(1, PUBLIC_EPOCH_BATCHES // config.batches_per_allreduce)
        self.model_options: dict[str, Any] = {"scale": config.scale, **config.edsr_options()}
        min_side = config.scale * max(config.patch_size, MIN_LR_SIDE)
        self.measure: Measure = div2k_measure(config.scale)
        if config.data == SYNTHETIC:
            *self.training, self.validation_photo = pairs.synthetic_photos(config.scale, min_side, config.seed)
            self.validation, self.validation_title = [self.validation_photo], self.validation_photo.name
        else:
            training, validation = ranks.all_or_fail(lambda: self._image_sets())
            if validation.layout == "benchmark":
                self.measure = benchmark_measure(config.scale)
            self.validation_title = validation.title
            self.training = open_photos(training, config, min_side, ranks)
            self.validation = open_photos(validation, config, config.scale * MIN_LR_SIDE, ranks)
            require_same_images(ranks, named_data(config), names_and_sizes([*self.training, *self.validation]))
        self.crops = Crops(self.training, config.scale, config.patch_size, config.seed)
        self.needs_prefetch = any(isinstance(photo.hr, LazyImage) for photo in self.training)

    def _refuse_ignored_options(self) -> None:
        config = self.config
        refuse_given(
            config, ("image_size", "num_classes"), f"is for classifiers, and {config.model} is for super-resolution"
        )
        if config.data == SYNTHETIC:
            fields = ("train_images", "val_images", "val_data", "holdout", *CACHE_OPTIONS)
            refuse_given(config, fields, "does not apply to --data synthetic")
        elif config.data == BUNDLED and config.val_data in (None, BUNDLED):
            refuse_given(config, CACHE_OPTIONS, "does not apply to --data bundled")  # these photos stay in memory

    def _image_sets(self) -> tuple[ImageSet, ImageSet]:
        config = self.config
        found = image_set(config.data, config.scale)
        if config.val_data is None:
            return split(found, config.train_images, config.val_images, config.holdout)
        if config.val_images or config.holdout:
            raise RequestError("--val-data excludes --val-images and --holdout: leave them out")
        other = image_set(config.val_data, config.scale, "--val-data")
        chosen = parse_range("--train-images", config.train_images)
        return found if chosen is None else select_numbers(found, image_numbers(found), chosen), other

    def build_model(self) -> nn.Module:
        model = models.build(self.config.model, **self.model_options)
        if self.config.weights is not None:
            state = read_weights(self.config.weights)[1]
            models.load_state(model, state, str(self.config.weights), allow_other_tail=True)
        return model

    def load_batch(self, batch: int) -> tuple[Tensor, Tensor]:
        """Low- and high-resolution patches, (batch, 3, side, side) as bytes.

        Raises RequestError as `Crops.draw` does.
        """
        lr, hr = self.crops.cut(self.crops.draw(batch, self.ranks.rank, self.ranks.size, self.config.batch_size))
        return torch.from_numpy(lr), torch.from_numpy(hr)

    def to_device(self, loaded: tuple[Tensor, Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
        lr, hr = loaded
        return lr.to(device).float(), hr.to(device).float()

    def data_position(self, step: int) -> dict[str, int]:
        return {}

    def resume_at(self, step: int, position: dict[str, int]) -> int:
        return step

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """The mean absolute error. Raises RequestError if the model returned no image of this
        size.
        """
        if not isinstance(output, Tensor) or output.shape != targets.shape:
            raise models.wrong_output(self.config.model, output, targets.shape)
        return l1_loss(output.float(), targets)

    def evaluate(self, model: nn.Module, run: RunFolder) -> dict[str, Any]:
        scores = score_photos(model, self.validation, self.config.scale, self.measure, self.ranks)
        picture = run.path / "picture.png"

        def draw() -> None:
            if self.ranks.rank != 0:
                return
            sheet = side_by_side(compare(model, self.validation[0], self.config.scale, self.measure))
            try:
                write_atomically(picture, lambda stream: sheet.save(stream, "PNG"))
            except OSError as error:
                raise cannot_write(run.path, error) from error

        self.ranks.all_or_fail(draw)
        count = len(scores)
        return {
            "holdout": self.validation_title,
            "psnr_db": mean_psnr_db(scores),
            "ssim": sum(score.ssim for score in scores) / count,
            "bicubic_psnr_db": sum(score.bicubic_psnr_db for score in scores) / count,
            "picture": picture,
        }


def open_photos(found: ImageSet, config: TrainConfig, min_side: int, ranks: Ranks) -> list[Photo]:
    """The photos of `found`: in memory if bundled, otherwise mapped from the cache. Collective.

    Raises RequestError, on all ranks, for unusable images.
    """
    if found.layout == BUNDLED:
        return ranks.all_or_fail(lambda: [pairs.load_photo(pair, config.scale, min_side) for pair in found.pairs])
    cache = DecodedCache(config.cache_dir or default_folder(), int(config.cache_gb * 1e9))
    return pairs.cached_photos(found.pairs, config.scale, min_side, cache, ranks)
