"""EDSR: size, parameter names and forward pass."""

import pytest
import torch
from torch import nn

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.models.presets.edsr import DIV2K_MEAN_RGB, ResidualBlock


@pytest.mark.parametrize(
    ("name", "scale", "parameters", "tensors", "gigamacs", "gradient_mebibytes"),
    [
        ("edsr-baseline", 2, 1_369_859, 72, 3.16, 5.2),
        ("edsr-baseline", 4, 1_517_571, 74, 4.57, 5.8),
        ("edsr", 2, 40_729_603, 136, 93.85, 155.4),
        ("edsr", 3, 43_680_003, 136, 100.7, 166.6),
        ("edsr", 4, 43_089_923, 138, 115.8, 164.4),
    ],
)
def test_cost_matches_the_published_models(
    name: str, scale: int, parameters: int, tensors: int, gigamacs: float, gradient_mebibytes: float
) -> None:
    cost = models.cost(models.build(name, scale=scale), (1, 3, 48, 48))
    assert (cost.parameters, cost.tensors) == (parameters, tensors)
    assert cost.forward_flops / 2e9 == pytest.approx(gigamacs, rel=1e-3)
    assert cost.gradient_bytes / 2**20 == pytest.approx(gradient_mebibytes, abs=0.05)
    assert cost.gradient_bytes == 4 * parameters


def test_default_edsr_is_the_full_model() -> None:
    full = models.build("edsr", scale=2, n_resblocks=32, n_feats=256, res_scale=0.1, rgb_range=255)
    assert {key: value.shape for key, value in full.state_dict().items()} == {
        key: value.shape for key, value in models.build("edsr").state_dict().items()
    }


@pytest.mark.parametrize(("scale", "upsampler"), [(2, ["tail.0.0"]), (3, ["tail.0.0"]), (4, ["tail.0.0", "tail.0.2"])])
def test_state_dict_keys_and_order(scale: int, upsampler: list[str]) -> None:
    blocks = [f"body.{i}.body.{j}" for i in range(3) for j in (0, 2)]
    layers = ["sub_mean", "head.0", *blocks, "body.3", *upsampler, "tail.1", "add_mean"]
    model = models.build("edsr", scale=scale, n_resblocks=3, n_feats=4)
    assert list(model.state_dict()) == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("model", ["edsr", "edsr-baseline"])
def test_output_is_scale_times_the_input(model: str, scale: int) -> None:
    output = models.build(model, scale=scale, n_resblocks=1, n_feats=4)(torch.zeros(2, 3, 5, 7))
    assert output.shape == (2, 3, 5 * scale, 7 * scale)


def test_forward_equals_a_computation_by_hand() -> None:
    """One feature, one block and a 1x1 image, so only the centre of each 3x3 kernel (1) counts."""
    model = models.build("edsr", scale=2, n_resblocks=1, n_feats=1, res_scale=0.5, rgb_range=1)
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            nn.init.zeros_(module.weight)
            nn.init.constant_(module.bias, 0.25)  # type: ignore[arg-type]
            with torch.no_grad():
                module.weight[:, :, 1, 1] = 1
    image = torch.tensor([0.5, 0.6, 0.7])
    mean = torch.tensor(DIV2K_MEAN_RGB)
    head = float((image - mean).sum()) + 0.25
    block = head + 0.5 * ((head + 0.25) + 0.25)  # the ReLU changes nothing: head + 0.25 > 0
    features = head + (block + 0.25)
    expected = (features + 0.25) + 0.25 + mean
    output = model(image.view(1, 3, 1, 1))
    torch.testing.assert_close(output[0], expected.view(3, 1, 1).expand(3, 2, 2))


def test_relu_cuts_negative_features() -> None:
    block = ResidualBlock(n_feats=1, res_scale=1)
    for parameter in block.parameters():
        nn.init.constant_(parameter, float(parameter.ndim > 1))  # kernels of ones, no bias
    assert block(torch.full((1, 1, 1, 1), -3.0)).item() == -3
    assert block(torch.full((1, 1, 1, 1), 3.0)).item() == 6


def test_mean_shift_is_frozen_and_exact_under_autocast() -> None:
    model = models.build("edsr-baseline", n_resblocks=1, n_feats=4)
    assert not any(parameter.requires_grad for parameter in model.sub_mean.parameters())  # type: ignore[union-attr]
    image = torch.full((1, 3, 2, 2), 253.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        shifted = model.sub_mean(image)  # type: ignore[operator]
        output = model(image)
    assert shifted.dtype == output.dtype == torch.float32
    expected = 253.3 - 255 * torch.tensor(DIV2K_MEAN_RGB)
    torch.testing.assert_close(shifted[0, :, 0, 0], expected)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "edrs",
            {},
            "edrs: unknown model; did you mean edsr? Known: edsr, edsr-baseline, resnet50, vgg16, "
            "torchvision's other classification models, and your own as package.module:function",
        ),
        ("edsr", {"depth": 3}, "edsr has no option 'depth': it has scale, n_resblocks, n_feats, res_scale, rgb_range"),
        ("edsr", {"scale": 5}, "EDSR does not support scale 5: choose 2, 3 or 4"),
        ("edsr", {"n_feats": 0}, "EDSR needs at least one residual block and one feature map, not 32 and 0"),
    ],
)
def test_invalid_request_gives_a_one_line_error(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        models.build(name, **options)
    assert str(caught.value) == message
