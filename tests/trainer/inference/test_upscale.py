"""Tiled inference gives the whole image's result within a memory limit."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.trainer.inference.metrics import to_pixels
from hvscale.trainer.inference.upscale import (
    PeakTensorBytes,
    bytes_per_pixel,
    receptive_radius,
    self_ensemble,
    super_resolve,
)

WHOLE = 1e15


def small(scale: int = 2) -> nn.Module:
    torch.manual_seed(1)
    return models.build("edsr", scale=scale, n_resblocks=2, n_feats=8, res_scale=1).eval()


def image(height: int, width: int) -> torch.Tensor:
    return 255 * torch.rand(3, height, width, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("blocks", [1, 3])
def test_output_pixels_depend_on_the_receptive_radius_only(scale: int, blocks: int) -> None:
    """With positive weights every dependence shows in the gradient; no ReLU cuts it."""
    model = models.build("edsr", scale=scale, n_resblocks=blocks, n_feats=2, res_scale=1)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    radius = receptive_radius(model)
    assert radius is not None
    side = 2 * radius + 5
    middle = side // 2
    lr = torch.ones(1, 3, side, side, requires_grad=True)
    model(lr)[:, :, scale * middle : scale * (middle + 1), scale * middle : scale * (middle + 1)].sum().backward()
    assert lr.grad is not None
    rows = lr.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten()
    assert middle - radius <= int(rows.min())
    assert int(rows.max()) <= middle + radius


def test_a_model_in_training_mode_upscales_as_in_evaluation_mode() -> None:
    """Its statistics do not change, and dropout is inactive."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(), nn.Upsample(scale_factor=2))
    lr, before = image(6, 7), copy.deepcopy(model.state_dict())
    torch.testing.assert_close(super_resolve(model, lr, 2, WHOLE), copy.deepcopy(model).eval()(lr[None])[0])
    assert model.training
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_an_output_of_another_size_is_an_error() -> None:
    message = r"^the model returned a tensor of shape \(1, 3, 6, 7\) .* needs a tensor of shape \(1, 3, 12, 14\)$"
    with pytest.raises(RequestError, match=message):
        super_resolve(nn.Sequential(nn.BatchNorm2d(3)), image(6, 7), 2, WHOLE)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_tiles_give_the_whole_image_s_result(scale: int) -> None:
    model, lr = small(scale), image(61, 75)
    least = (2 * (receptive_radius(model) or 0) + 1) ** 2 * bytes_per_pixel(model)
    whole = super_resolve(model, lr, scale, WHOLE)
    for memory in (1.5 * least, 3 * least):
        torch.testing.assert_close(super_resolve(model, lr, scale, memory), whole, rtol=0, atol=1e-3)


def test_too_little_overlap_changes_the_result() -> None:
    """The same comparison fails for a model that understates its radius."""
    model, lr = small(), image(61, 75)
    model.receptive_radius = torch.tensor(1)
    whole = super_resolve(model, lr, 2, WHOLE)
    tiled = super_resolve(model, lr, 2, 20**2 * bytes_per_pixel(model))
    assert float((tiled - whole).abs().max()) > 1e-3


def test_self_ensemble_is_the_mean_over_flips_and_rotations() -> None:
    model, lr = small(), image(12, 17)
    found = self_ensemble(model, lr, 2, WHOLE)
    expected = torch.zeros_like(found)
    for quarters in range(4):
        for mirrored in (False, True):
            rotated = torch.rot90(lr.flip(2) if mirrored else lr, quarters, (1, 2))
            back = torch.rot90(super_resolve(model, rotated, 2, WHOLE), -quarters, (1, 2))
            expected += (back.flip(2) if mirrored else back) / 8
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_too_small_limit_and_model_without_receptive_radius() -> None:
    with pytest.raises(RequestError, match=r"--memory-gb 1e-06: this model needs at least 0\.\d+ GB for one tile"):
        super_resolve(small(), image(60, 60), 2, 1000)
    without_radius = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Upsample(scale_factor=2))
    with pytest.raises(RequestError, match="the model has no attribute receptive_radius"):
        super_resolve(without_radius, image(60, 60), 2, 1000)


MEASURED = """
import re, sys, torch
torch.set_num_threads(1)
from hvscale import models
from hvscale.trainer.inference.upscale import super_resolve
model = models.build("edsr-baseline", n_resblocks=1, n_feats=32)
image = torch.zeros(3, 640, 640)
def peak():
    # Not getrusage's ru_maxrss, which starts with the parent process's memory.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
super_resolve(model, image[:, :16, :16], 2, 1e9)
before = peak()
for memory in sys.argv[1:]:
    super_resolve(model, image, 2, float(memory))
    print((peak() - before) * 1024)
"""


def test_a_result_takes_20_bytes_a_pixel() -> None:
    with PeakTensorBytes() as counted:
        pixels = to_pixels(torch.full((3, 64, 32), 7.0))
    assert (pixels.shape, pixels.min(), pixels.max()) == ((64, 32, 3), 7, 7)
    assert counted.peak <= 20 * 64 * 32


@pytest.mark.ranks
def test_memory_stays_within_the_limit() -> None:
    """The output itself (20 MB) is extra. Without tiles this image needs more than 600 MB."""
    limit, output = 150e6, 3 * 1280 * 1280 * 4
    # The peak of the first can hide none of the second, which is larger.
    words = [sys.executable, "-c", MEASURED, str(limit), str(WHOLE)]
    limited, whole = map(int, subprocess.check_output(words, text=True).split())
    assert limited < limit + output
    assert whole > 3 * limit
