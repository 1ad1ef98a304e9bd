"""Super-resolve an image of any size within a bound of memory, tile by tile, with the result of the whole image at once."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hvscale.core.errors import RequestError

PROBED_SIDE = 64
# Convolution kernels keep reordered copies of their inputs and outputs beside those that PyTorch knows of.
KERNELS_SHARE = 1.5  # 1.2 was measured for EDSR on a CPU


class LivingBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, `peak` is the most bytes that tensors made there took at one time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.living: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self.living[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        for key in [key for key, (ref, _) in self.living.items() if ref.expired()]:  # type: ignore[no-untyped-call]
            del self.living[key]
        self.peak = max(self.peak, sum(size for _, size in self.living.values()))
        return out


def bytes_per_pixel(model: nn.Module) -> float:
    """Memory that a forward pass takes for each low-resolution pixel, computed on fake tensors."""
    device = next(model.parameters()).device
    with FakeTensorMode(allow_non_fake_inputs=True), LivingBytes() as counted, torch.no_grad():
        model(torch.empty(1, 3, PROBED_SIDE, PROBED_SIDE, device=device))
    each: float = KERNELS_SHARE * counted.peak / PROBED_SIDE**2
    return each


def receptive_radius(model: nn.Module) -> int | None:
    """How many low-resolution pixels around its own an output pixel depends on; None for a model that does not say."""
    radius = getattr(model, "receptive_radius", None)
    return int(radius) if radius is not None else None


def super_resolve(model: nn.Module, image: Tensor, scale: int, memory_bytes: float) -> Tensor:
    """(3, height, width) in 0..255 to (3, scale * height, scale * width) on the CPU, not clamped.

    Where the whole image would take more than `memory_bytes`, it is cut into tiles that overlap by the model's receptive
    radius: each output pixel then sees all it would have seen. Raises RequestError when the model does not say its
    radius, or when the bound leaves no room for a tile.
    """
    height, width = image.shape[1:]
    each = bytes_per_pixel(model)
    if height * width * each <= memory_bytes:
        return _forward(model, image)
    radius = receptive_radius(model)
    if radius is None:
        raise RequestError(
            f"a {width}x{height} image takes {height * width * each / 1e9:.1f} GB, and the model says no receptive_radius "
            "to cut it into tiles by: raise --memory-gb, or give the model that attribute, in low-resolution pixels"
        )
    core = math.isqrt(int(memory_bytes / each)) - 2 * radius
    if core < 1:
        least = (2 * radius + 1) ** 2 * each / 1e9
        raise RequestError(f"--memory-gb {memory_bytes / 1e9:g}: this model needs at least {least:.2f} for a tile")
    out = torch.empty(3, scale * height, scale * width)
    for top in range(0, height, core):
        for left in range(0, width, core):
            bottom, right = min(top + core, height), min(left + core, width)
            # At the image's own border a tile ends with it, so that the convolutions pad what they would have padded.
            above, before = max(0, top - radius), max(0, left - radius)
            tile = _forward(model, image[:, above : bottom + radius, before : right + radius])
            rows = slice(scale * (top - above), scale * (bottom - above))
            columns = slice(scale * (left - before), scale * (right - before))
            out[:, scale * top : scale * bottom, scale * left : scale * right] = tile[:, rows, columns]
    return out


def self_ensemble(model: nn.Module, image: Tensor, scale: int, memory_bytes: float) -> Tensor:
    """As `super_resolve`, the mean over the eight flips and turns of the image (Lim et al., 2017, section 3.4)."""
    total = torch.zeros(3, scale * image.shape[1], scale * image.shape[2])
    for transposed in (False, True):
        for flips in ([], [1], [2], [1, 2]):
            turned = torch.flip(image.transpose(1, 2) if transposed else image, flips)
            back = torch.flip(super_resolve(model, turned, scale, memory_bytes), flips)
            total += back.transpose(1, 2) if transposed else back
    return total / 8


def _forward(model: nn.Module, image: Tensor) -> Tensor:
    device = next(model.parameters()).device
    with torch.inference_mode():
        out: Tensor = model(image[None].to(device).float())
        return out[0].float().cpu()
