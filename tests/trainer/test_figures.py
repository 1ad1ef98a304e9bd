"""PSNR, the learning-rate schedule, the number of steps and the options."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hvscale.core.errors import RequestError
from hvscale.trainer import TrainConfig, demo_config
from hvscale.trainer.data import resize
from hvscale.trainer.hooks.time_budget import agreed_steps, images_per_second
from hvscale.trainer.inference.metrics import div2k_measure, psnr_db, to_pixels
from hvscale.trainer.optimizer import learning_rate
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.resources import openmp_threads


def test_psnr_equals_the_formula_and_torchmetrics() -> None:
    from torchmetrics.functional.image import peak_signal_noise_ratio  # each test worker would load it

    reference = np.full((40, 50, 3), 100, dtype=np.uint8)
    image = reference + np.uint8(3)
    image[:8] = 255  # inside the shaved border of scale + 6 = 8 pixels
    assert psnr_db(image, reference, div2k_measure(2)) == pytest.approx(20 * math.log10(255 / 3))
    random = np.random.default_rng(1)
    a, b = (random.integers(0, 256, (40, 50, 3), dtype=np.uint8) for _ in range(2))
    inner = [torch.from_numpy(pixels[10:-10, 10:-10].astype(np.float64)) for pixels in (a, b)]
    assert psnr_db(a, b, div2k_measure(4)) == pytest.approx(
        float(peak_signal_noise_ratio(inner[0], inner[1], data_range=255.0))
    )
    assert psnr_db(a, a, div2k_measure(2)) == math.inf


def test_pixels_are_clamped_and_rounded() -> None:
    image = torch.tensor([-3.0, 0.4, 0.6, 254.6, 300.0]).expand(3, 5)[:, None, :]
    assert to_pixels(image)[0, :, 0].tolist() == [0, 0, 1, 255, 255]


def test_downscaling_antialiases_and_upscaling_keeps_flat_photos() -> None:
    stripes = np.zeros((32, 32, 3), dtype=np.uint8)
    stripes[::2] = 255
    shrunk = resize.shrink(stripes, 2)
    assert np.abs(shrunk[4:-4].astype(int) - 128).max() < 20  # without antialiasing it would be all black or all white
    flat = np.full((8, 9, 3), 77, dtype=np.uint8)
    assert (resize.enlarge(flat, 3) == 77).all()
    assert resize.crop_to_multiple(np.zeros((11, 13, 3), dtype=np.uint8), 4).shape == (8, 12, 3)


def config(**options: Any) -> TrainConfig:
    return TrainConfig.of(**{"steps": 10, **options})


def test_schedule() -> None:
    constant = learning_rate(config(), 1e-4, steps_per_epoch=10, factor=8)
    assert [constant.at(step, 100) for step in (0, 50, 99)] == [1e-4] * 3
    cosine = learning_rate(config(schedule="cosine", warmup_steps=4), 1.0, steps_per_epoch=10, factor=8)
    assert [cosine.at(step, None) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert cosine.at(52, 100) == pytest.approx(0.5)
    assert 0 < cosine.at(99, 100) < 1e-3


def test_scaled_learning_rate_rises_from_the_unscaled_one() -> None:
    scaled = config(scale_learning_rate=True, warmup_epochs=0.5, learning_rate=0.1)
    rates = learning_rate(scaled, 1.0, steps_per_epoch=10, factor=6)
    assert [rates.at(step, 100) for step in (0, 1, 4, 5, 99)] == pytest.approx([0.2, 0.3, 0.6, 0.6, 0.6])


def test_time_budget_becomes_a_number_of_steps() -> None:
    alone = Ranks()
    assert agreed_steps(60, [0.5], alone) is None
    assert agreed_steps(60, [0.5] * 12, alone) is None
    assert agreed_steps(60, [2.0] * 3 + [0.5] * 10, alone) == 13 + 98  # 49 s are left
    assert agreed_steps(60, [0.5] * 14, alone) is None
    assert agreed_steps(60, [20.0], alone) == 3  # the timed steps would not fit
    assert agreed_steps(5, [20.0], alone) == 1
    assert (
        agreed_steps(5, [0.3] + [2.0] * 12, alone) == 14
    )  # the budget is already exceeded: one more step ends the schedule


def test_ranks_with_different_timings_agree() -> None:
    class Two(Ranks):
        def allgather(self, value: Any) -> list[Any]:
            return [value, value * 3]

    assert agreed_steps(60, [0.1] * 13, Two()) == 13 + round((60 - 13 * 0.2) / 0.2)


def test_throughput_excludes_warm_up_steps() -> None:
    assert images_per_second(8, [9.0, 9.0, 9.0, 0.5, 0.5]) == 16
    assert images_per_second(8, [2.0]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "--batch-size 0: input should be greater than or equal to 1"),
        ({"scale": 5}, "--scale 5: input should be 2, 3 or 4"),
        ({"precision": "fp8"}, "--precision fp8: input should be 'auto', 'fp32', 'bf16' or 'fp16'"),
        ({"depth": 3}, "--depth 3: extra inputs are not permitted"),
        ({"seconds": 5}, "--steps and --seconds exclude each other: choose one"),
    ],
)
def test_invalid_option_gives_a_one_line_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        config(**options)
    assert str(caught.value) == message


def test_default_length_is_one_epoch() -> None:
    assert TrainConfig.of().steps == 1000
    assert TrainConfig.of(seconds=5).steps is None
    assert TrainConfig.of(steps=5).seconds is None


def test_every_option_has_a_help_text() -> None:
    assert [name for name, field in TrainConfig.model_fields.items() if not field.description] == []


def test_arguments_list_options_that_differ_from_the_defaults() -> None:
    words = config(model="edsr", n_feats=32, run=Path("here"), schedule="cosine").arguments()
    expected = "edsr --n-feats 32 --schedule cosine --steps 10 --run here"
    assert words == expected.split()
    demo = demo_config().arguments()
    again = {name[2:].replace("-", "_"): value for name, value in zip(demo[1::2], demo[2::2], strict=True)}
    # pydantic parses numbers from strings, but not for a Literal such as scale
    assert TrainConfig.of(model=demo[0], **{**again, "scale": demo_config().scale}) == demo_config()


@pytest.mark.parametrize(("text", "threads"), [("2", 2), ("3,1", 3), ("", None), ("many", None), ("0", None)])
def test_threads_that_openmp_is_told_to_use(monkeypatch: pytest.MonkeyPatch, text: str, threads: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert openmp_threads() == threads
