"""What the steps that call `hvscale train` share: tiny images with classes, and its steps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hvscale.bench.gpu_check.commands import CommandFailedError
from hvscale.bench.gpu_check.step import StepContext
from hvscale.core.files import read_text

IMAGES, SIDE = 32, 16


def make_images(context: StepContext) -> Path:
    """Write a folder of two classes with IMAGES images."""
    random = np.random.default_rng(1)
    folder = context.folder / "images"
    for number in range(IMAGES):
        path = folder / "train" / "ab"[number % 2] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        # The classes differ in brightness.
        pixels = random.integers(100 * (number % 2), 150 + 100 * (number % 2), (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


def steps_of(run: Path) -> list[dict[str, Any]]:
    """The lines of steps.jsonl that are complete. Raises CommandFailedError if there is none."""
    try:
        lines = read_text(run / "steps.jsonl").splitlines(keepends=True)
    except OSError as error:
        raise CommandFailedError(f"{run}/steps.jsonl cannot be read: {error.strerror}", []) from error
    return [json.loads(line) for line in lines if line.endswith("\n")]
