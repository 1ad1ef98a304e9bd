"""Compares matrix products and convolutions of each type with fp64 on the CPU; prints JSON.

Usage: python -m hvscale.bench.gpu_check.rank_side.arithmetic cuda|cpu
"""

import json
import sys

import torch
from torch import Tensor
from torch.nn.functional import conv2d

SIDE, CHANNELS = 256, 32
# The allowed error relative to the largest result, in machine epsilons of the type. Sums are added
# in fp32 or better; Winograd's convolutions lose some digits. TF32's error is thousands of fp32's.
EPSILONS = {torch.float64: 128, torch.float32: 128, torch.bfloat16: 8, torch.float16: 8}


def relative_error(found: Tensor, exact: Tensor) -> float:
    """The largest error relative to the largest value of `exact`."""
    return float((found.double().cpu() - exact).abs().max() / exact.abs().max())


def errors(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """The relative errors of both operations, for inputs that are exact in `dtype`."""
    random = torch.Generator().manual_seed(1)
    left, right = (torch.randn(SIDE, SIDE, generator=random).to(dtype) for _ in range(2))
    images = torch.randn(2, CHANNELS, 24, 24, generator=random).to(dtype)
    weights = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=random).to(dtype)
    return {
        "matrix_product": relative_error(left.to(device) @ right.to(device), left.double() @ right.double()),
        "convolution": relative_error(
            conv2d(images.to(device), weights.to(device), padding=1),
            conv2d(images.double(), weights.double(), padding=1),
        ),
    }


def main() -> None:
    device = torch.device(sys.argv[1])
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    found = []
    for dtype, epsilons in EPSILONS.items():
        limit = epsilons * torch.finfo(dtype).eps
        found.append({"dtype": str(dtype).removeprefix("torch."), "limit": limit, **errors(device, dtype)})
    print(json.dumps({"dtypes": found}))


if __name__ == "__main__":
    main()
