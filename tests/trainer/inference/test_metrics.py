"""PSNR and SSIM against the published formulas and other libraries."""

import numpy as np
import pytest
import torch
from scipy.signal import convolve2d

from hvscale.trainer.data.images import Pixels
from hvscale.trainer.inference.metrics import Measure, benchmark_measure, compared_values, div2k_measure, psnr_db, ssim


@pytest.fixture
def image_pair() -> tuple[Pixels, Pixels]:
    """A noisy image, and the smooth image without noise."""
    rows, columns = np.mgrid[0:40, 0:52]
    reference = np.stack([rows * 5, columns * 4, rows + columns], axis=2).astype(np.uint8)
    noise = np.random.default_rng(1).integers(-9, 10, reference.shape)
    return np.clip(reference.astype(int) + noise, 0, 255).astype(np.uint8), reference


def test_measures_follow_the_conventions_of_the_field() -> None:
    assert div2k_measure(3) == Measure(shave=9, luma=False)
    assert benchmark_measure(3) == Measure(shave=3, luma=True)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_psnr_equals_the_public_implementation(image_pair: tuple[Pixels, Pixels], scale: int) -> None:
    """Its formula: difference over range, weighted to luma, shaved, squared, averaged."""
    noisy, reference = (torch.from_numpy(image).permute(2, 0, 1)[None].float() for image in image_pair)
    difference = (noisy - reference) / 255
    luma = (difference * torch.tensor([65.738, 129.057, 25.064]).view(1, 3, 1, 1) / 256).sum(dim=1, keepdim=True)
    for found, shave, measure in (
        (difference, scale + 6, div2k_measure(scale)),
        (luma, scale, benchmark_measure(scale)),
    ):
        expected = -10 * found[..., shave:-shave, shave:-shave].pow(2).mean().log10()
        assert psnr_db(*image_pair, measure) == pytest.approx(float(expected), abs=1e-4)


def test_ssim_equals_wang_s_formula(image_pair: tuple[Pixels, Pixels]) -> None:
    """Only windows inside the image count, as in the authors' code."""
    measure = benchmark_measure(2)
    a, b = (compared_values(image, measure) for image in image_pair)
    axis = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window = np.outer(axis, axis) / axis.sum() ** 2

    def mean(
        image: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        found: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = convolve2d(image, window, mode="valid")
        return found

    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    ma, mb = mean(a), mean(b)
    variance_a, variance_b, covariance = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    expected = (2 * ma * mb + c1) * (2 * covariance + c2) / ((ma**2 + mb**2 + c1) * (variance_a + variance_b + c2))
    assert ssim(*image_pair, measure) == pytest.approx(expected.mean(), abs=1e-9)


def test_ssim_of_rgb_is_the_mean_of_its_channels(image_pair: tuple[Pixels, Pixels]) -> None:
    measure = Measure(0, luma=False)
    grey = [[np.repeat(image[..., channel : channel + 1], 3, axis=2) for image in image_pair] for channel in range(3)]
    by_channel = [ssim(noisy, reference, measure) for noisy, reference in grey]
    assert ssim(*image_pair, measure) == pytest.approx(np.mean(by_channel))
    assert max(by_channel) - min(by_channel) > 0.01
    assert ssim(image_pair[0], image_pair[0], measure) == 1


def test_luma_follows_bt_601() -> None:
    colours = np.array([[[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0]]], dtype=np.uint8)
    assert compared_values(colours, Measure(0, luma=True))[0] == pytest.approx([16, 235, 81.48, 144.55], abs=0.02)
