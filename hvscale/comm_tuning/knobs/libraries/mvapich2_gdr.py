"""MVAPICH2-GDR 2.3: the open release's knobs, and its own list of devices."""

from hvscale.comm_tuning.knobs.libraries.mvapich2 import SPELLINGS
from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, Target, register
from hvscale.comm_tuning.knobs.values import OneOf

GPUS = Spelling(
    knob="visible_devices",
    variables={"--devices": "all"},
    values=OneOf.of("split"),
    note="needs 2.3.5 or later; sets MV2_VISIBLE_DEVICES to all GPUs and CUDA_VISIBLE_DEVICES to the rank's own",
    source="Anthony et al., Scaling Single-Image Super-Resolution Training on Modern HPC Clusters, 2021",
)


def in_job(target: Target) -> bool:
    return target.version.endswith("-GDR")


register(
    KnobLibrary(
        key="mvapich2-gdr",
        name="MVAPICH2-GDR",
        flavours=("mvapich2",),
        in_job=in_job,
        spellings=(*SPELLINGS, GPUS),
    )
)
