"""Compare patches/s of our memory-mapped images with a loader that decodes two PNGs per patch.

Both use one thread, on eight photos of DIV2K's size made from the bundled ones. Then a training on
two ranks measures the data wait. Run it with the environment's Python: `python
benchmarks/data_pipeline.py [--rounds 7]`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from interleaved import print_speeds, run_interleaved
from PIL import Image
from rich.console import Console

from hvscale.launch.controller import launch
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.data.sources import image_set
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.tasks.super_resolution import SuperResolution

WIDTH, HEIGHT, PHOTOS = 2040, 1356, 8
BATCH, PATCH, SCALE = 16, 48, 2


def make_photos(folder: Path) -> None:
    """Write a benchmark set: HR photos, and LR_bicubic/X2 beside them."""
    (folder / "HR").mkdir(parents=True)
    (folder / "LR_bicubic/X2").mkdir(parents=True)
    bundled = image_set("bundled", SCALE).pairs
    for number in range(PHOTOS):
        with Image.open(bundled[number % len(bundled)].hr) as photo:
            large = photo.convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        large.save(folder / f"HR/{number}.png")
        small = large.resize((WIDTH // SCALE, HEIGHT // SCALE), Image.Resampling.BICUBIC)
        small.save(folder / f"LR_bicubic/X2/{number}x2.png")


def decode_patch(folder: Path, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Cut a random patch from a random pair of PNG files; return the LR and HR patch."""
    number = int(draw.integers(PHOTOS))
    with Image.open(folder / f"HR/{number}.png") as hr, Image.open(folder / f"LR_bicubic/X2/{number}x2.png") as lr:
        left, top = int(draw.integers(lr.width - PATCH + 1)), int(draw.integers(lr.height - PATCH + 1))
        low = np.asarray(lr)[top : top + PATCH, left : left + PATCH]
        high = np.asarray(hr)[SCALE * top : SCALE * (top + PATCH), SCALE * left : SCALE * (left + PATCH)]
    if draw.random() < 0.5:
        low, high = low[:, ::-1], high[:, ::-1]
    if draw.random() < 0.5:
        low, high = low[::-1], high[::-1]
    if draw.random() < 0.5:
        low, high = low.transpose(1, 0, 2), high.transpose(1, 0, 2)
    return np.ascontiguousarray(low.transpose(2, 0, 1)), np.ascontiguousarray(high.transpose(2, 0, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40, help="number of steps of the two ranks")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name) / "photos", Path(name) / "decoded"
        make_photos(folder)
        config = TrainConfig.of(
            data=str(folder), cache_dir=cache, batch_size=BATCH, patch_size=PATCH, steps=options.steps
        )
        task = SuperResolution(config, Ranks())
        draw = np.random.default_rng(1)
        numbers = iter(range(1_000_000))

        def decode_batch() -> None:
            lows, highs = zip(*(decode_patch(folder, draw) for _ in range(BATCH)), strict=True)
            np.stack(lows), np.stack(highs)

        def speed(batch: Callable[[], object], times: int) -> Callable[[], float]:
            def measure() -> float:
                start = time.perf_counter()
                for _ in range(times):
                    batch()
                return times * BATCH / (time.perf_counter() - start)

            return measure

        variants = {
            "a PNG per patch": speed(decode_batch, 1),
            "hvscale": speed(lambda: task.load_batch(next(numbers)), 20),
        }
        print_speeds(
            f"patches of {PATCH} from {WIDTH}x{HEIGHT}, one thread",
            run_interleaved(variants, options.rounds),
            "a PNG per patch",
        )
        run = launch(
            ["hvscale", "train", *config.arguments()],
            LaunchOptions(np=2, run=Path(name) / "run"),
            LaunchHooks(warn=lambda text: None),
        )
        steps = [json.loads(line) for line in run.steps.read_text().splitlines()][5:]
        waited = sum(step["data_wait_seconds"] for step in steps) / sum(step["seconds"] for step in steps)
        Console().print(f"data wait: {waited:.2%} of the time of {len(steps)} steps, two ranks")


if __name__ == "__main__":
    main()
