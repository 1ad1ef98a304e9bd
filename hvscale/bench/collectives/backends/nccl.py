"""NCCL through torch.distributed."""

from hvscale.bench.collectives.backends import Backend, register
from hvscale.bench.collectives.elements import DTYPES
from hvscale.bench.collectives.rank_side.torch_group import IN_PLACE, OUT_OF_PLACE, TorchGroup
from hvscale.core.host import gpus
from hvscale.launch.flavours import FLAVOURS


def problem(command: list[str], environment: dict[str, str]) -> str:
    return "" if gpus() else "NCCL needs NVIDIA GPUs, and nvidia-smi lists none here: run it on nodes with GPUs"


register(
    Backend(
        name="nccl",
        # PyTorch's ranks need no MPI.
        flavour=next(name for name, flavour in FLAVOURS.all().items() if not flavour.has_mpi),
        out_of_place=OUT_OF_PLACE,
        in_place=IN_PLACE,
        dtypes=tuple(DTYPES),
        paths={"cuda": ("nccl",)},
        open=lambda request: TorchGroup("nccl"),
        problem=problem,
    )
)
