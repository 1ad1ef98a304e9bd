"""Bicubic resizing against reference values from GNU Octave's image package 2.14.0.

pkg load image; i = (0:11)'; b = mod(i*37 + (i.*i)'*29 + (i.*i)*i'*13, 256); imresize(b, 0.5)
"""

import numpy as np
import pytest

from hvscale.trainer.data.resize import contributions, crop_to_multiple, enlarge, imresize, shrink

COUNT = np.arange(12)
IMAGE = ((COUNT * 37)[:, None] + (COUNT**2 * 29)[None] + np.outer(COUNT**2, COUNT) * 13) % 256

HALF = [
    [43.1745, 96.0030, 129.8691, 87.1465, 112.7939, 148.2747],
    [89.7120, 156.2785, 109.3926, 84.5957, 106.8309, 86.3661],
    [143.7998, 130.5596, 158.7969, 122.9180, 73.8428, 88.8330],
    [136.6240, 159.5518, 177.1562, 126.8086, 123.6748, 115.9346],
    [82.1590, 170.0322, 155.1191, 121.8926, 132.8975, 135.3801],
    [151.8471, 101.5711, 150.1660, 132.6387, 108.9016, 113.4576],
]
THIRD = [
    [70.9427, 120.2318, 92.8415, 128.7906],
    [135.4344, 143.0884, 104.4303, 81.7712],
    [127.8520, 169.9151, 125.0761, 125.5107],
    [126.5775, 142.3531, 127.7345, 117.4501],
]
QUARTER = [[93.1850, 107.6947, 110.2495], [145.2914, 141.3170, 101.9990], [130.0887, 139.8829, 121.5418]]
TWICE = [
    [-6.0732, 0.1638, 12.6379, 43.6902, 93.3206, 118.1357],
    [3.7678, 10.6696, 24.4732, 58.7768, 113.5804, 140.9822],
    [23.4500, 31.6812, 48.1437, 88.9500, 154.1000, 186.6750],
    [42.3513, 56.1111, 83.6308, 113.0723, 144.4357, 160.1174],
    [60.4719, 83.9594, 130.9344, 131.1437, 84.5875, 61.3093],
    [69.5322, 97.8835, 154.5862, 140.1794, 54.6633, 11.9053],
]
THREE_TIMES = [
    [-7.1728, -4.1111, 4.0535, 15.2798, 23.4444, 26.5062],
    [-3.2222, 0.0000, 8.5926, 20.4074, 29.0000, 32.2222],
    [7.3128, 10.9630, 20.6968, 34.0809, 43.8148, 47.4650],
    [21.7984, 26.0370, 37.3402, 52.8820, 64.1852, 68.4239],
    [32.3333, 37.0000, 49.4444, 66.5556, 79.0000, 83.6667],
    [36.2840, 41.1111, 53.9835, 71.6831, 84.5556, 89.3827],
]
REFERENCE = [(12, HALF), (12, THIRD), (12, QUARTER), (3, TWICE), (2, THREE_TIMES)]


@pytest.mark.parametrize(("side", "values"), REFERENCE)
def test_floats_equal_the_reference_values(side: int, values: list[list[float]]) -> None:
    found = imresize(IMAGE[:side, :side].astype(np.float64), len(values), len(values))
    np.testing.assert_allclose(found, values, atol=1e-4)


@pytest.mark.parametrize("values", [HALF, THIRD, QUARTER])
def test_bytes_are_within_one_level_of_the_reference(values: list[list[float]]) -> None:
    """Bytes are rounded after each of the two passes."""
    found = imresize(IMAGE.astype(np.uint8), len(values), len(values))
    assert found.dtype == np.uint8
    assert np.abs(found - np.array(values)).max() <= 1


def test_kernel_weights_for_half_the_size() -> None:
    """Keys' cubic at 0.25, 0.75, ... of a kernel twice as wide, computed by hand."""
    weights, indices = contributions(40, 20)
    np.testing.assert_array_equal(weights[10] * 256, [-3, -9, 29, 111, 111, 29, -9, -3])
    assert indices[10].tolist() == list(range(17, 25))
    assert indices[0].tolist() == [2, 1, 0, 0, 1, 2, 3, 4]  # mirrored at the border


def test_halves_are_rounded_up() -> None:
    rows = np.tile(np.array([[10], [11]], np.uint8), (8, 2))  # at half the height 10.5, except at the borders
    assert imresize(rows, 8, 2)[2:6].tolist() == [[11, 11]] * 4


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_photo_through_the_public_functions(scale: int) -> None:
    photo = np.random.default_rng(1).integers(0, 256, (25, 27, 3), dtype=np.uint8)
    hr = crop_to_multiple(photo, scale)
    lr = shrink(hr, scale)
    assert lr.shape == (25 // scale, 27 // scale, 3)
    assert enlarge(lr, scale).shape == hr.shape
    for channel in range(3):
        assert np.array_equal(lr[:, :, channel], imresize(hr[:, :, channel], *lr.shape[:2]))
