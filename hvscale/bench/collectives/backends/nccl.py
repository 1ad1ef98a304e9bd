"""NCCL, as PyTorch has it."""

from hvscale.bench.collectives.backends import Backend, register
from hvscale.bench.collectives.elements import DTYPES
from hvscale.bench.collectives.rank_side.torch_group import IN_PLACE, OUT_OF_PLACE, TorchGroup
from hvscale.core.host import gpus


def problem(command: list[str], environment: dict[str, str]) -> str:
    return (
        ""
        if gpus()
        else "NCCL works between NVIDIA GPUs, and nvidia-smi lists none here: start it on nodes that have some"
    )


register(
    Backend(
        name="nccl",
        flavour="gloo",
        out_of_place=OUT_OF_PLACE,
        in_place=IN_PLACE,
        dtypes=tuple(DTYPES),
        paths={"cuda": ("nccl",)},
        open=lambda request: TorchGroup("nccl"),
        problem=problem,
    )
)
