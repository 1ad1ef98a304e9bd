"""A checkpoint of the public EDSR code loads and gives the same outputs as its formulas."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pixel_shuffle, relu

from hvscale import models

BLOCKS, FEATURES = 3, 6


def public_checkpoint(scale: int) -> "OrderedDict[str, Tensor]":
    """Tensors with the names, order and shapes that the public code saves, and random values."""
    shapes = {"head.0": (FEATURES, 3, 3, 3)}
    shapes |= {f"body.{block}.body.{conv}": (FEATURES, FEATURES, 3, 3) for block in range(BLOCKS) for conv in (0, 2)}
    shapes |= {f"body.{BLOCKS}": (FEATURES, FEATURES, 3, 3)}
    shapes |= {f"tail.0.{place}": (factor**2 * FEATURES, FEATURES, 3, 3) for place, factor in steps(scale)}
    shapes |= {"tail.1": (3, FEATURES, 3, 3)}
    random = torch.Generator().manual_seed(scale)
    mean = 255 * torch.tensor((0.4488, 0.4371, 0.4040))
    saved = OrderedDict({"sub_mean.weight": torch.eye(3).view(3, 3, 1, 1), "sub_mean.bias": -mean})
    for layer, shape in shapes.items():
        saved[f"{layer}.weight"] = 0.1 * torch.randn(shape, generator=random)
        saved[f"{layer}.bias"] = 0.1 * torch.randn(shape[0], generator=random)
    saved |= {"add_mean.weight": torch.eye(3).view(3, 3, 1, 1), "add_mean.bias": mean}
    return saved


def steps(scale: int) -> list[tuple[int, int]]:
    """Index in the upsampler and factor of each of its convolutions."""
    return [(0, 2), (2, 2)] if scale == 4 else [(0, scale)]


def public_forward(saved: dict[str, Tensor], image: Tensor, scale: int, res_scale: float) -> Tensor:
    """Lim et al. (2017), section 3, computed from the tensors."""

    def conv(layer: str, x: Tensor) -> Tensor:
        weight = saved[f"{layer}.weight"]
        return conv2d(x, weight, saved[f"{layer}.bias"], padding=weight.shape[-1] // 2)

    head = conv("head.0", conv("sub_mean", image))
    x = head
    for block in range(BLOCKS):
        x = conv(f"body.{block}.body.2", relu(conv(f"body.{block}.body.0", x))) * res_scale + x
    x = conv(f"body.{BLOCKS}", x) + head
    for place, factor in steps(scale):
        x = pixel_shuffle(conv(f"tail.0.{place}", x), factor)
    return conv("add_mean", conv("tail.1", x))


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize(("name", "res_scale"), [("edsr-baseline", 1.0), ("edsr", 0.1)])
def test_public_checkpoint_gives_the_same_outputs(tmp_path: Path, name: str, res_scale: float, scale: int) -> None:
    saved = public_checkpoint(scale)
    file = tmp_path / "model_best.pt"
    torch.save(saved, file)
    model = models.build(name, scale=scale, n_resblocks=BLOCKS, n_feats=FEATURES)
    assert models.load(model, file) == []
    image = 255 * torch.rand(2, 3, 9, 11, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(model(image), public_forward(saved, image, scale, res_scale))


def test_checkpoint_saved_from_data_parallel_loads(tmp_path: Path) -> None:
    saved = public_checkpoint(2)
    file = tmp_path / "model.pt"
    torch.save({f"module.{name}": value for name, value in saved.items()}, file)
    model = models.build("edsr-baseline", n_resblocks=BLOCKS, n_feats=FEATURES)
    assert models.load(model, file) == []
    assert torch.equal(model.state_dict()["tail.1.weight"], saved["tail.1.weight"])
