"""The types of elements, by the names of NumPy and PyTorch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hvscale.bench.collectives.values import Carried, Pattern
from hvscale.core.errors import RequestError
from hvscale.core.suggest import unknown


@dataclass(frozen=True)
class Dtype:
    """`carrier`: the NumPy type that holds its bits, an unsigned one, so that comparing compares bits. `nccl`: nccl-tests' name for it.

    `mpi`: the name of MPI's type, and `sum`: of our own sum, which MPI lacks for the types of 16 bits.
    """

    name: str
    nccl: str
    carrier: Any
    mpi: str
    sum: str | None = None

    @property
    def bytes(self) -> int:
        return int(np.dtype(self.carrier).itemsize)

    def encode(self, pattern: Pattern) -> Carried:
        """The bits of whole numbers up to 256."""
        if self.name == "bfloat16":
            return (pattern.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return pattern.astype(self.name).view(self.carrier)

    def decode(self, bits: Any) -> float:
        """The number that these bits of one element are."""
        if self.name == "bfloat16":
            return float((np.array([bits], np.uint32) << 16).view(np.float32)[0])
        return float(np.array([bits], self.carrier).view(self.name)[0])


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", "float", np.uint32, "FLOAT"),
        Dtype("float64", "double", np.uint64, "DOUBLE"),
        # MPI 4 has no float16: the study that compared raw back ends counts it as MPI's weakness. Here it moves them as integers and adds by our sum.
        Dtype("float16", "half", np.uint16, "UINT16_T", "hvbench_sum_float16"),
        Dtype("bfloat16", "bfloat16", np.uint16, "UINT16_T", "hvbench_sum_bfloat16"),
    )
}


def get(name: str) -> Dtype:
    """Raises RequestError, naming a near one, for an unknown type."""
    if name not in DTYPES:
        raise RequestError(f"--dtype {name}: no such type; {unknown(name, DTYPES)}")
    return DTYPES[name]
