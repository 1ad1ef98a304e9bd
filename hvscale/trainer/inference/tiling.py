"""Upscales an image of any size within a memory limit, tile by tile, with the result of the whole
image.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hvscale.core.errors import RequestError

PROBE_SIDE = 64
# Convolution kernels keep reordered copies of their inputs and outputs, which PyTorch does not
# count.
KERNEL_MEMORY_FACTOR = 1.5  # 1.2 was measured for EDSR on a CPU


class PeakTensorBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context: `peak` is the largest total size, in bytes, of the tensors created in it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        for key in [key for key, (ref, _) in self.live.items() if ref.expired()]:  # type: ignore[no-untyped-call]
            del self.live[key]
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return out


def bytes_per_pixel(model: nn.Module) -> float:
    """Memory of a forward pass for each low-resolution pixel, computed on fake tensors."""
    device = next(model.parameters()).device
    with FakeTensorMode(allow_non_fake_inputs=True), PeakTensorBytes() as counted, torch.no_grad():
        model(torch.empty(1, 3, PROBE_SIDE, PROBE_SIDE, device=device))
    each: float = KERNEL_MEMORY_FACTOR * counted.peak / PROBE_SIDE**2
    return each


def receptive_radius(model: nn.Module) -> int | None:
    """Distance, in low-resolution pixels, up to which an output pixel depends on the input; None if
    the model does not say.
    """
    radius = getattr(model, "receptive_radius", None)
    return int(radius) if radius is not None else None


def super_resolve(model: nn.Module, image: Tensor, scale: int, memory_bytes: float) -> Tensor:
    """(3, height, width) in 0..255 to (3, scale * height, scale * width) on the CPU, not clamped.

    An image that would take more than `memory_bytes` is cut into tiles that overlap by the model's
    receptive radius, so that each output pixel depends on the same input. Raises RequestError if
    the model has no `receptive_radius`, or if the limit is too small for a tile.
    """
    height, width = image.shape[1:]
    each = bytes_per_pixel(model)
    if height * width * each <= memory_bytes:
        return _forward(model, image)
    radius = receptive_radius(model)
    if radius is None:
        raise RequestError(
            f"a {width}x{height} image takes {height * width * each / 1e9:.1f} GB, and the model has no attribute "
            "receptive_radius (in low-resolution pixels) to cut it into tiles: raise --memory-gb or add the attribute"
        )
    core = math.isqrt(int(memory_bytes / each)) - 2 * radius
    if core < 1:
        least = (2 * radius + 1) ** 2 * each / 1e9
        raise RequestError(f"--memory-gb {memory_bytes / 1e9:g}: this model needs at least {least:.2f} GB for one tile")
    out = torch.empty(3, scale * height, scale * width)
    for top in range(0, height, core):
        for left in range(0, width, core):
            bottom, right = min(top + core, height), min(left + core, width)
            # At the border of the image a tile ends with it, so that convolutions pad as they do
            # for the whole image.
            above, before = max(0, top - radius), max(0, left - radius)
            tile = _forward(model, image[:, above : bottom + radius, before : right + radius])
            rows = slice(scale * (top - above), scale * (bottom - above))
            columns = slice(scale * (left - before), scale * (right - before))
            out[:, scale * top : scale * bottom, scale * left : scale * right] = tile[:, rows, columns]
    return out


def self_ensemble(model: nn.Module, image: Tensor, scale: int, memory_bytes: float) -> Tensor:
    """As `super_resolve`, averaged over the eight flips and rotations of the image (Lim et al.,
    2017, section 3.4).
    """
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
