"""Upscales images of any size within a memory limit.

Images that are too large are cut into tiles, with the same result.
"""

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import write_atomically
from hvscale.trainer.checkpoints.trained_model import load_trained_model
from hvscale.trainer.data.images import Pixels, decode_transparency, decode_upright, image_size
from hvscale.trainer.inference.config import UpscaleConfig
from hvscale.trainer.inference.metrics import to_pixels
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.compiler_import import keep_uncompiled
from hvscale.trainer.system.resources import share_cores

MEMORY_BYTES = 2e9
PROBE_SIDE = 32  # small: EDSR with 43 million parameters takes a second of a core
# Convolution kernels keep reordered copies of inputs and outputs, which PyTorch does not count.
KERNEL_MEMORY_FACTOR = 1.5  # 1.2 was measured for EDSR on a CPU
# Parameters of glibc's mallopt, and the bounds between which glibc moves its mmap threshold.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD_MIN, MMAP_THRESHOLD_MAX = 128 << 10, 32 << 20


class PeakTensorBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context: `peak` is the largest total size, in bytes, of the tensors created inside."""

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


keep_uncompiled(PeakTensorBytes.__torch_dispatch__)


def bytes_per_pixel(model: nn.Module) -> float:
    """Memory of a forward pass for each low-resolution pixel, counted on a small image.

    Not on fake tensors, which import torch.compile: that takes longer.
    """
    device = next(model.parameters()).device
    with models.evaluation_mode(model), PeakTensorBytes() as counted, torch.no_grad():
        model(torch.zeros(1, 3, PROBE_SIDE, PROBE_SIDE, device=device))
    per_pixel: float = KERNEL_MEMORY_FACTOR * counted.peak / PROBE_SIDE**2
    return per_pixel


def receptive_radius(model: nn.Module) -> int | None:
    """Distance, in low-resolution pixels, up to which an output pixel depends on the input.

    None if the model has no attribute `receptive_radius`.
    """
    radius = getattr(model, "receptive_radius", None)
    return int(radius) if radius is not None else None


def super_resolve(model: nn.Module, image: Tensor, scale: int, memory_bytes: float) -> Tensor:
    """Upscale (3, height, width) in 0..255 by `scale`, not clamped, on the CPU.

    An image that would need more than `memory_bytes` is cut into tiles. They overlap by the model's
    receptive radius, so that each output pixel depends on the same input. Raises RequestError if
    the model has no `receptive_radius`, if the limit is too small for one tile, or if the model
    returns no image of the right size.
    """
    height, width = image.shape[1:]
    per_pixel = bytes_per_pixel(model)
    if height * width * per_pixel <= memory_bytes:
        return _forward(model, image, scale)
    radius = receptive_radius(model)
    if radius is None:
        raise RequestError(
            f"a {width}x{height} image takes {height * width * per_pixel / 1e9:.1f} GB, and the model has no attribute "
            "receptive_radius (in low-resolution pixels) to cut it into tiles: raise --memory-gb or add the attribute"
        )
    core = math.isqrt(int(memory_bytes / per_pixel)) - 2 * radius
    if core < 1:
        least = math.ceil((2 * radius + 1) ** 2 * per_pixel / 1e6) / 1e3
        raise RequestError(f"--memory-gb {memory_bytes / 1e9:g}: this model needs at least {least:g} GB for one tile")
    with freed_tensors_leave_the_process():
        return _super_resolve_tiles(model, image, scale, core, radius)


def _super_resolve_tiles(model: nn.Module, image: Tensor, scale: int, core: int, radius: int) -> Tensor:
    """Upscale in tiles of `core` x `core` pixels, with `radius` more on each side."""
    height, width = image.shape[1:]
    out = torch.empty(3, scale * height, scale * width)
    for top in range(0, height, core):
        for left in range(0, width, core):
            bottom, right = min(top + core, height), min(left + core, width)
            # At the image's border tiles end with the image, so convolutions pad as usual.
            above, before = max(0, top - radius), max(0, left - radius)
            tile = _forward(model, image[:, above : bottom + radius, before : right + radius], scale)
            rows = slice(scale * (top - above), scale * (bottom - above))
            columns = slice(scale * (left - before), scale * (right - before))
            out[:, scale * top : scale * bottom, scale * left : scale * right] = tile[:, rows, columns]
    return out


@contextmanager
def freed_tensors_leave_the_process() -> Iterator[None]:
    """Context: malloc returns each freed tensor's memory to the system at once.

    glibc raises its mmap threshold to the size of blocks that are freed, up to 32 MB. Smaller
    tensors then share the heap, which fragments: the process needs up to half more memory than its
    tensors. Afterwards, both thresholds are the largest that glibc sets by itself.
    """
    # Other C libraries lack mallopt; other allocators, if preloaded, ignore it.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_MIN)
    try:
        yield
    finally:
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_MAX)
        mallopt(M_TRIM_THRESHOLD, 2 * MMAP_THRESHOLD_MAX)


def self_ensemble(model: nn.Module, image: Tensor, scale: int, memory_bytes: float) -> Tensor:
    """`super_resolve`, averaged over the image's eight flips and rotations.

    Source: Lim et al. (2017), section 3.4.
    """
    total = torch.zeros(3, scale * image.shape[1], scale * image.shape[2])
    for transposed in (False, True):
        for flips in ([], [1], [2], [1, 2]):
            flipped = torch.flip(image.transpose(1, 2) if transposed else image, flips)
            back = torch.flip(super_resolve(model, flipped, scale, memory_bytes), flips)
            total += back.transpose(1, 2) if transposed else back
    return total / 8


def _forward(model: nn.Module, image: Tensor, scale: int) -> Tensor:
    device = next(model.parameters()).device
    # In training mode batch normalisation would learn from the image, and dropout would be active.
    with models.evaluation_mode(model), torch.inference_mode():
        out = model(image[None].to(device).float())
    shape = (1, 3, scale * image.shape[1], scale * image.shape[2])
    if not isinstance(out, Tensor) or out.shape != shape:
        raise models.wrong_output("the model", out, shape, "upscaling")
    return out[0].float().cpu()


def upscale_image(
    model: nn.Module, lr: Pixels, scale: int, memory_bytes: float = MEMORY_BYTES, ensemble: bool = False
) -> Pixels:
    """Upscale (height, width, 3) by `scale`, in fp32. Raises as `super_resolve` does."""
    image = torch.from_numpy(lr.copy()).permute(2, 0, 1)
    upscale_tensor = self_ensemble if ensemble else super_resolve
    return to_pixels(upscale_tensor(model, image, scale, memory_bytes))


def upscale_files(config: UpscaleConfig, done: Callable[[Path, Path], None]) -> None:
    """Write NAMEx2.png and so on for each image, and call `done(image, output)` after each.

    Transparency is upscaled by bicubic interpolation. The images are divided among the ranks of a
    launcher. Raises RequestError at the start for unusable weights and files that are not images;
    later for truncated images, an output folder that cannot be written, and a memory limit that is
    too small.
    """
    ranks = Ranks()
    share_cores(ranks, config.threads)
    trained = ranks.all_or_fail(lambda: load_trained_model(config.weights, config.model, config.model_options()))
    if models.find(trained.name).task != "super-resolution":
        ranks.fail(RequestError(f"{trained.name} is a classifier: upscaling needs a super-resolution model"))
    scale = int(trained.options["scale"])
    targets = [(config.output or image.parent) / f"{image.stem}x{scale}.png" for image in config.images]

    def check() -> None:
        uses, given = Counter(target.resolve() for target in targets), {image.resolve() for image in config.images}
        for image, target in zip(config.images, targets, strict=True):
            image_size(image)
            if target.resolve() in given:
                raise RequestError(f"{target} is one of the given images: write to another folder with --output")
            if uses[target.resolve()] > 1:
                raise RequestError(
                    f"two images would be written to {target}: upscale them one at a time, with different --output"
                )

    ranks.all_or_fail(check)
    trained.module.to(ranks.device())

    def enlarge() -> None:
        for image, target in list(zip(config.images, targets, strict=True))[ranks.rank :: ranks.size]:
            pixels = upscale_image(
                trained.module, decode_upright(image), scale, config.memory_gb * 1e9, config.self_ensemble
            )
            picture = Image.fromarray(pixels)
            if (alpha := decode_transparency(image)) is not None:
                picture.putalpha(alpha.resize(picture.size, Image.Resampling.BICUBIC))
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, lambda stream, picture=picture: picture.save(stream, "PNG"))  # type: ignore[misc]
            except OSError as error:
                raise RequestError(
                    f"cannot write {target}: {error.strerror}. Choose another folder with --output"
                ) from error
            done(image, target)

    ranks.all_or_fail(enlarge)
