"""Measure a trained model on the photo that was held out."""

from dataclasses import dataclass

import torch
from torch import nn

from hvscale.trainer import resize
from hvscale.trainer.metrics import psnr_db, quantise
from hvscale.trainer.photos import Pixels


@dataclass(frozen=True)
class Evaluation:
    """The held-out photo four ways, (height, width, 3), `lr` smaller by the scale; and the PSNR of two of them."""

    lr: Pixels
    bicubic: Pixels
    ours: Pixels
    hr: Pixels
    bicubic_psnr_db: float
    psnr_db: float


def evaluate(model: nn.Module, photo: Pixels, scale: int) -> Evaluation:
    hr = resize.crop_to_multiple(photo, scale)
    lr = resize.shrink(hr, scale)
    bicubic = resize.enlarge(lr, scale)
    ours = super_resolve(model, lr)
    return Evaluation(lr, bicubic, ours, hr, psnr_db(bicubic, hr, scale), psnr_db(ours, hr, scale))


def super_resolve(model: nn.Module, lr: Pixels) -> Pixels:
    """(height, width, 3) to the model's scale times that, computed in fp32 whatever the precision of the training."""
    image = torch.from_numpy(lr.copy()).permute(2, 0, 1)[None].float()
    with torch.inference_mode():
        return quantise(model(image.to(next(model.parameters()).device)))
