"""MVAPICH2 2.3 and MVAPICH2-GDR 2.3: environment variables, read in MPI_Init."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, Target, register
from hvscale.comm_tuning.knobs.values import Bytes, OneOf, Switch

GUIDE = "MVAPICH2 2.3.7 user guide, MVAPICH2 parameters"
SOURCE_CODE = "MVAPICH2 source code, src/mpi/coll"

SPELLINGS = (
    Spelling(
        knob="cuda_ipc",
        variables={"MV2_CUDA_IPC": "1"},
        values=Switch(),
        build="CUDA",
        note="needs a build with CUDA, and MV2_USE_CUDA=1 for messages in GPU memory",
        source=GUIDE,
    ),
    Spelling(
        knob="registration_cache",
        variables={"MV2_USE_LAZY_MEM_UNREGISTER": "1"},
        values=Switch(),
        note="needs an RDMA network",
        source=GUIDE,
    ),
    Spelling(
        knob="eager_threshold",
        # The guide requires the same size for the buffers of eager messages.
        variables={"MV2_IBA_EAGER_THRESHOLD": "", "MV2_VBUF_TOTAL_SIZE": ""},
        values=Bytes(1, 2**31 - 1),
        unit="bytes",
        note="needs an RDMA network; the default depends on the adapter",
        source=GUIDE,
    ),
    Spelling(
        knob="allreduce_algorithm",
        variables={"MV2_INTER_ALLREDUCE_TUNING": ""},
        values=OneOf({"recursive_doubling": "1", "reduce_scatter_allgather": "2"}),
        note="by default, a table in the library selects it by message size and np",
        source=f"{SOURCE_CODE}, allreduce_tuning.h",
    ),
    Spelling(
        knob="broadcast_algorithm",
        variables={"MV2_INTER_BCAST_TUNING": ""},
        values=OneOf(
            {
                "binomial": "1",
                "scatter_allgather": "3",
                "scatter_ring_allgather": "5",
                "knomial": "8",
                "pipeline": "9",
            }
        ),
        note="by default, a table in the library selects it by message size and np",
        source=f"{SOURCE_CODE}, bcast_tuning.c",
    ),
    Spelling(
        knob="yield_when_idle",
        variables={"MV2_USE_BLOCKING": "0"},
        values=Switch(),
        note="on waits for an interrupt from the network adapter",
        source=GUIDE,
    ),
    Spelling(
        knob="binding",
        variables={"MV2_CPU_BINDING_LEVEL": "core"},
        values=OneOf({"core": "core", "socket": "socket", "numa": "numanode"}),
        also_set={"MV2_ENABLE_AFFINITY": "1", "MV2_CPU_BINDING_POLICY": "bunch"},
        note="also sets MV2_ENABLE_AFFINITY=1 and MV2_CPU_BINDING_POLICY=bunch; by default, hvscale leaves ranks unbound",
        source=GUIDE,
    ),
)


# The GDR release has all knobs of the open release, and this one.
GDR_DEVICES = Spelling(
    knob="visible_devices",
    variables={"--devices": "all"},
    values=OneOf.of("split"),
    note="needs 2.3.5 or later; sets MV2_VISIBLE_DEVICES to all GPUs and CUDA_VISIBLE_DEVICES to the rank's own GPU",
    source="Anthony et al., Scaling Single-Image Super-Resolution Training on Modern HPC Clusters, 2021",
)


def is_gdr(target: Target) -> bool:
    return target.version.endswith("-GDR")


register(
    KnobLibrary(
        key="mvapich2",
        name="MVAPICH2",
        flavours=("mvapich2",),
        in_job=lambda target: not is_gdr(target),
        spellings=SPELLINGS,
    )
)
register(
    KnobLibrary(
        key="mvapich2-gdr",
        name="MVAPICH2-GDR",
        flavours=("mvapich2",),
        in_job=is_gdr,
        spellings=(*SPELLINGS, GDR_DEVICES),
    )
)
