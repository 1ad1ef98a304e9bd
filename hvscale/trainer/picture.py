"""The picture of a run: LR, bicubic, ours and HR side by side."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hvscale.trainer.evaluation import Evaluation
from hvscale.trainer.photos import Pixels

WINDOW = 96
ENLARGED = 4
MARGIN = 12
LABEL_HEIGHT = 40


def side_by_side(photo: Evaluation) -> Image.Image:
    """The same window of all four, its pixels enlarged to squares: where bicubic is furthest from the truth."""
    window = worst_window(photo.bicubic, photo.hr)
    scale = len(photo.hr) // len(photo.lr)
    panels = [
        ("LR", photo.lr.repeat(scale, axis=0).repeat(scale, axis=1)),
        (f"bicubic {photo.bicubic_psnr_db:.2f} dB", photo.bicubic),
        (f"ours {photo.psnr_db:.2f} dB", photo.ours),
        ("HR", photo.hr),
    ]
    side = WINDOW * ENLARGED
    sheet = Image.new("RGB", (len(panels) * (side + MARGIN) + MARGIN, side + LABEL_HEIGHT + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(22)
    for number, (label, pixels) in enumerate(panels):
        left = MARGIN + number * (side + MARGIN)
        draw.text((left, LABEL_HEIGHT // 2), label, "black", font, anchor="lm")
        cut = Image.fromarray(np.ascontiguousarray(pixels[window]))
        sheet.paste(cut.resize((side, side), Image.Resampling.NEAREST), (left, LABEL_HEIGHT))
    return sheet


def worst_window(bicubic: Pixels, hr: Pixels) -> tuple[slice, slice]:
    error = ((bicubic.astype(np.float64) - hr) ** 2).sum(axis=2)
    step = WINDOW // 4
    corners = [
        (row, column)
        for row in range(0, max(1, error.shape[0] - WINDOW + 1), step)
        for column in range(0, max(1, error.shape[1] - WINDOW + 1), step)
    ]
    row, column = max(
        corners, key=lambda corner: error[corner[0] : corner[0] + WINDOW, corner[1] : corner[1] + WINDOW].sum()
    )
    return slice(row, row + WINDOW), slice(column, column + WINDOW)
