"""The picture of a run: LR, bicubic, ours and HR side by side."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hvscale.trainer.data.images import Pixels
from hvscale.trainer.inference.super_resolution_evaluation import Evaluation

WINDOW = 96
ENLARGED = 4
MARGIN = 12
LABEL_HEIGHT = 40
FOOT_HEIGHT = 34


def side_by_side(photo: Evaluation) -> Image.Image:
    """The same window of all four, its pixels enlarged to squares: where bicubic is furthest from the truth."""
    pixels_wide = min(WINDOW, *photo.hr.shape[:2])
    window = worst_window(photo.bicubic, photo.hr, pixels_wide)
    scale = len(photo.hr) // len(photo.lr)
    panels = [
        ("LR", photo.lr.repeat(scale, axis=0).repeat(scale, axis=1)),
        (f"bicubic {photo.bicubic_psnr_db:.2f} dB", photo.bicubic),
        (f"ours {photo.psnr_db:.2f} dB", photo.ours),
        ("HR", photo.hr),
    ]
    side = WINDOW * ENLARGED
    sheet = Image.new("RGB", (len(panels) * (side + MARGIN) + MARGIN, side + LABEL_HEIGHT + FOOT_HEIGHT), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(22)
    for number, (label, pixels) in enumerate(panels):
        left = MARGIN + number * (side + MARGIN)
        draw.text((left, LABEL_HEIGHT // 2), label, "black", font, anchor="lm")
        cut = Image.fromarray(np.ascontiguousarray(pixels[window]))
        sheet.paste(cut.resize((side, side), Image.Resampling.NEAREST), (left, LABEL_HEIGHT))
    foot = f"{pixels_wide}x{pixels_wide} pixels, where bicubic is furthest from HR. PSNR is that of the whole photo."
    draw.text((MARGIN, sheet.height - FOOT_HEIGHT // 2), foot, "dimgray", ImageFont.load_default(16), anchor="lm")
    return sheet


def worst_window(bicubic: Pixels, hr: Pixels, side: int) -> tuple[slice, slice]:
    """Rows and columns of the square with the largest squared error, looked for in steps of a quarter of its side."""
    error = ((bicubic.astype(np.float64) - hr) ** 2).sum(axis=2)
    windows = [
        (slice(row, row + side), slice(column, column + side))
        for row in range(0, error.shape[0] - side + 1, side // 4)
        for column in range(0, error.shape[1] - side + 1, side // 4)
    ]
    return max(windows, key=lambda window: float(error[window].sum()))
