"""Patches a second of one thread: our mapped images against a loader that decodes two PNG files for
each patch, and the data wait of two ranks.

Makes eight photos of DIV2K's size from the bundled ones. Run it with the environment's Python:
`python benchmarks/data_pipeline.py [--rounds 7]`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from turns import in_turns, show

from hvscale.launch.controller import launch
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.data.sources import image_set
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.tasks.super_resolution import SuperResolution

WIDTH, HEIGHT, PHOTOS = 2040, 1356, 8
BATCH, PATCH, SCALE = 16, 48, 2


def make_photos(folder: Path) -> None:
    """A benchmark set: HR, and LR_bicubic/X2 beside it."""
    (folder / "HR").mkdir(parents=True)
    (folder / "LR_bicubic/X2").mkdir(parents=True)
    bundled = image_set("bundled", SCALE).pairs
    for number in range(PHOTOS):
        with Image.open(bundled[number % len(bundled)].hr) as photo:
            large = photo.convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        large.save(folder / f"HR/{number}.png")
        small = large.resize((WIDTH // SCALE, HEIGHT // SCALE), Image.Resampling.BICUBIC)
        small.save(folder / f"LR_bicubic/X2/{number}x2.png")


def decoded_patch(folder: Path, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
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
    parser.add_argument("--steps", type=int, default=40, help="of the two ranks")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name) / "photos", Path(name) / "decoded"
        make_photos(folder)
        config = TrainConfig.of(
            data=str(folder), cache_dir=cache, batch_size=BATCH, patch_size=PATCH, steps=arguments.steps
        )
        work = SuperResolution(config, Ranks())
        draw = np.random.default_rng(1)
        drawn = iter(range(1_000_000))

        def decoding() -> None:
            lows, highs = zip(*(decoded_patch(folder, draw) for _ in range(BATCH)), strict=True)
            np.stack(lows), np.stack(highs)

        def speed(batch: Callable[[], object], times: int) -> Callable[[], float]:
            def measure() -> float:
                begin = time.perf_counter()
                for _ in range(times):
                    batch()
                return times * BATCH / (time.perf_counter() - begin)

            return measure

        variants = {"a PNG per patch": speed(decoding, 1), "hvscale": speed(lambda: work.load_batch(next(drawn)), 20)}
        show(
            f"patches of {PATCH} from {WIDTH}x{HEIGHT}, one thread",
            in_turns(variants, arguments.rounds),
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
