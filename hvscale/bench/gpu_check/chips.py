"""The peak bf16 throughput of NVIDIA's chips, which throughputs are compared with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """`words`: all are in the name that the driver gives the GPU, in lower case.

    `peak_flops`: dense bf16 tensor operations per second, added in fp32, at the boost clock. NVIDIA
    prints twice this for sparse matrices. `source`: the document.
    """

    words: tuple[str, ...]
    peak_flops: float
    source: str


# The first match counts, so that variants stand before the plain name.
CHIPS = (
    Chip(("h200", "nvl"), 835.5e12, "NVIDIA H200 datasheet (1,671 TFLOPS with sparsity)"),
    Chip(("h200",), 989.5e12, "NVIDIA H200 datasheet (1,979 TFLOPS with sparsity)"),
    Chip(("gh200",), 989.5e12, "NVIDIA GH200 datasheet (1,979 TFLOPS with sparsity)"),
    Chip(("h100", "nvl"), 835.5e12, "NVIDIA H100 datasheet (1,671 TFLOPS with sparsity)"),
    Chip(("h100", "pcie"), 756e12, "NVIDIA H100 datasheet (1,513 TFLOPS with sparsity)"),
    Chip(("h100",), 989.5e12, "NVIDIA H100 datasheet, SXM (1,979 TFLOPS with sparsity)"),
    Chip(("a100",), 312e12, "NVIDIA A100 datasheet (312 TFLOPS dense)"),
    Chip(("a30",), 165e12, "NVIDIA A30 datasheet (165 TFLOPS dense)"),
    Chip(("l40s",), 362e12, "NVIDIA L40S datasheet (362 TFLOPS dense)"),
)


def chip_of(name: str) -> Chip | None:
    """The chip that the driver calls `name`, such as "NVIDIA H100 80GB HBM3"; None if unknown."""
    words = name.lower().replace("-", " ").split()
    return next((chip for chip in CHIPS if all(word in words for word in chip.words)), None)
