"""Evaluates a super-resolution model on photos: scores and the picture of a run."""

from dataclasses import dataclass
from statistics import fmean

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from hvscale.trainer.data import resize
from hvscale.trainer.data.images import Pixels
from hvscale.trainer.data.pairs import Photo
from hvscale.trainer.inference.metrics import Measure, psnr_db, ssim
from hvscale.trainer.inference.upscale import MEMORY_BYTES, upscale_image
from hvscale.trainer.ranks import Ranks

# Sizes in the picture, in pixels.
WINDOW = 96
ENLARGED = 4
MARGIN = 12
LABEL_HEIGHT = 40
CAPTION_HEIGHT = 34


@dataclass(frozen=True)
class PhotoComparison:
    """Four versions of a photo (height, width, 3), `lr` smaller by the scale, and PSNR of two."""

    lr: Pixels
    bicubic: Pixels
    model: Pixels
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


def compare(model: nn.Module, photo: Photo, scale: int, measure: Measure) -> PhotoComparison:
    """Upscale one whole photo. Computes in fp32 whatever the precision of training."""
    lr, hr = photo.lr[:], photo.hr[:]
    bicubic, ours = resize.enlarge(lr, scale), upscale_image(model, lr, scale)
    return PhotoComparison(lr, bicubic, ours, hr, psnr_db(bicubic, hr, measure), psnr_db(ours, hr, measure))


def score_photos(
    model: nn.Module,
    photos: list[Photo],
    scale: int,
    measure: Measure,
    ranks: Ranks,
    memory_bytes: float = MEMORY_BYTES,
    ensemble: bool = False,
) -> list[PhotoScore]:
    """Scores of all photos in the given order, the same on all ranks. Collective.

    The photos are divided among the ranks.
    """

    def score(photo: Photo) -> PhotoScore:
        lr, hr = photo.lr[:], photo.hr[:]
        bicubic, ours = resize.enlarge(lr, scale), upscale_image(model, lr, scale, memory_bytes, ensemble)
        return PhotoScore(
            photo.name,
            psnr_db(ours, hr, measure),
            ssim(ours, hr, measure),
            psnr_db(bicubic, hr, measure),
            ssim(bicubic, hr, measure),
        )

    own = ranks.all_or_fail(lambda: [score(photo) for photo in photos[ranks.rank :: ranks.size]])
    by_rank = ranks.allgather(own)
    return [by_rank[number % ranks.size][number // ranks.size] for number in range(len(photos))]


def mean_psnr_db(scores: list[PhotoScore]) -> float:
    return fmean(score.psnr_db for score in scores)


def side_by_side(photo: PhotoComparison) -> Image.Image:
    """The picture of a run: LR, bicubic, model and HR in the window of bicubic's largest error."""
    pixels_wide = min(WINDOW, *photo.hr.shape[:2])
    window = worst_window(photo.bicubic, photo.hr, pixels_wide)
    scale = len(photo.hr) // len(photo.lr)
    panels = [
        ("LR", photo.lr.repeat(scale, axis=0).repeat(scale, axis=1)),
        (f"bicubic {photo.bicubic_psnr_db:.2f} dB", photo.bicubic),
        (f"model {photo.psnr_db:.2f} dB", photo.model),
        ("HR", photo.hr),
    ]
    side = WINDOW * ENLARGED
    sheet = Image.new("RGB", (len(panels) * (side + MARGIN) + MARGIN, side + LABEL_HEIGHT + CAPTION_HEIGHT), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(22)
    for number, (label, pixels) in enumerate(panels):
        left = MARGIN + number * (side + MARGIN)
        draw.text((left, LABEL_HEIGHT // 2), label, "black", font, anchor="lm")
        cut = Image.fromarray(np.ascontiguousarray(pixels[window]))
        sheet.paste(cut.resize((side, side), Image.Resampling.NEAREST), (left, LABEL_HEIGHT))
    caption = f"{pixels_wide}x{pixels_wide} pixels, where bicubic has the largest error. PSNR is of the whole photo."
    draw.text((MARGIN, sheet.height - CAPTION_HEIGHT // 2), caption, "dimgray", ImageFont.load_default(16), anchor="lm")
    return sheet


def worst_window(bicubic: Pixels, hr: Pixels, side: int) -> tuple[slice, slice]:
    """Rows and columns of the square with the largest squared error.

    The search moves in steps of a quarter of the square's side.
    """
    error = ((bicubic.astype(np.float64) - hr) ** 2).sum(axis=2)
    windows = [
        (slice(row, row + side), slice(column, column + side))
        for row in range(0, error.shape[0] - side + 1, side // 4)
        for column in range(0, error.shape[1] - side + 1, side // 4)
    ]
    return max(windows, key=lambda window: float(error[window].sum()))
