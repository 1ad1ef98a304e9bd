"""Measure a super-resolution model on photos, spread over the ranks, each photo counted once."""

from dataclasses import dataclass
from statistics import fmean

import torch
from torch import nn

from hvscale.trainer.data import resize
from hvscale.trainer.data.images import Pixels
from hvscale.trainer.data.pairs import Photo
from hvscale.trainer.inference import tiling
from hvscale.trainer.inference.metrics import Measure, psnr_db, quantise, ssim
from hvscale.trainer.ranks import Ranks

MEMORY_BYTES = 2e9


@dataclass(frozen=True)
class Evaluation:
    """A photo four ways, (height, width, 3), `lr` smaller by the scale; and the PSNR of two of them."""

    lr: Pixels
    bicubic: Pixels
    ours: Pixels
    hr: Pixels
    bicubic_psnr_db: float
    psnr_db: float


@dataclass(frozen=True)
class PhotoScore:
    name: str
    psnr_db: float
    ssim: float
    bicubic_psnr_db: float
    bicubic_ssim: float


def evaluate(model: nn.Module, photo: Photo, scale: int, measure: Measure) -> Evaluation:
    """One photo, whole, in fp32 whatever the precision of the training."""
    lr, hr = photo.lr[:], photo.hr[:]
    bicubic, ours = resize.enlarge(lr, scale), super_resolve(model, lr, scale)
    return Evaluation(lr, bicubic, ours, hr, psnr_db(bicubic, hr, measure), psnr_db(ours, hr, measure))


def super_resolve(
    model: nn.Module, lr: Pixels, scale: int, memory_bytes: float = MEMORY_BYTES, ensemble: bool = False
) -> Pixels:
    """(height, width, 3) to scale times that, computed in fp32. Raises RequestError as `tiling.super_resolve` does."""
    image = torch.from_numpy(lr.copy()).permute(2, 0, 1)
    upscale = tiling.self_ensemble if ensemble else tiling.super_resolve
    return quantise(upscale(model, image, scale, memory_bytes))


def scores(
    model: nn.Module,
    photos: list[Photo],
    scale: int,
    measure: Measure,
    ranks: Ranks,
    memory_bytes: float = MEMORY_BYTES,
    ensemble: bool = False,
) -> list[PhotoScore]:
    """Every photo's, in the order given, the same on all ranks, which take turns: shares may differ by one photo. Collective."""

    def score(photo: Photo) -> PhotoScore:
        lr, hr = photo.lr[:], photo.hr[:]
        bicubic, ours = resize.enlarge(lr, scale), super_resolve(model, lr, scale, memory_bytes, ensemble)
        return PhotoScore(
            photo.name,
            psnr_db(ours, hr, measure),
            ssim(ours, hr, measure),
            psnr_db(bicubic, hr, measure),
            ssim(bicubic, hr, measure),
        )

    own = ranks.together(lambda: [score(photo) for photo in photos[ranks.rank :: ranks.size]])
    by_rank = ranks.gather(own)
    return [by_rank[number % ranks.size][number // ranks.size] for number in range(len(photos))]


def mean_psnr_db(found: list[PhotoScore]) -> float:
    return fmean(score.psnr_db for score in found)
