"""Gloo through torch.distributed."""

from hvscale.bench.collectives.backends import HOST, Backend, register
from hvscale.bench.collectives.elements import DTYPES
from hvscale.bench.collectives.rank_side.torch_group import IN_PLACE, OUT_OF_PLACE, TorchGroup

register(
    Backend(
        name="gloo",
        flavour="gloo",
        out_of_place=OUT_OF_PLACE,
        in_place=IN_PLACE,
        dtypes=tuple(DTYPES),
        paths=HOST,
        open=lambda request: TorchGroup("gloo"),
        serves=True,
        gathers_twice=True,  # into one tensor, from which PyTorch fills the blocks
    )
)
