"""MPICH 4 and 5 (ch4): control variables, read in MPI_Init."""

from hvscale.comm_tuning.knobs.library import POWER_OF_TWO_RANKS, KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import Bytes, Names, OneOf, Switch

VARS = "mpivars"
LARGEST_INT = 2**31 - 1

register(
    KnobLibrary(
        key="mpich",
        name="MPICH",
        flavours=("mpich",),
        spellings=(
            Spelling(
                knob="cuda_ipc",
                # MPICH has no switch: messages of at least this size, and of reused buffers, use
                # IPC.
                variables={"MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD": "1048576"},
                values=Switch(on="1048576", off=str(LARGEST_INT)),
                also_set={"MPIR_CVAR_CH4_IPC_MAP_REPEAT_ADDR": "0"},
                also_set_for=False,
                note="needs a build with CUDA; off also sets MPIR_CVAR_CH4_IPC_MAP_REPEAT_ADDR=0; over ucx, UCX has this knob too",
                source=VARS,
            ),
            Spelling(
                knob="registration_cache",
                variables={"FI_MR_CACHE_MAX_COUNT": "1024"},
                values=Switch(on="1024", off="0"),
                transport="ofi",
                note="over ucx, this is a knob of UCX",
                source="fabric(7) of libfabric",
            ),
            Spelling(
                knob="transport",
                variables={"--transport": ""},
                values=OneOf.of("ucx", "ofi"),
                note="sets MPIR_CVAR_CH4_NETMOD",
                source="mpichversion",
            ),
            Spelling(
                knob="eager_threshold",
                variables={"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "-1"},
                values=Bytes(0, LARGEST_INT),
                unit="bytes",
                transport="ofi",
                restart="communicator",
                note="over ucx, this is a knob of UCX",
                source=VARS,
            ),
            Spelling(
                knob="yield_when_idle",
                variables={"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "0"},
                values=Switch(),
                note="on sleeps 1 us after every 4096 unsuccessful polls",
                source=VARS,
            ),
            Spelling(
                knob="allreduce_algorithm",
                variables={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "auto"},
                values=OneOf.of(
                    "auto",
                    "smp",
                    "recursive_doubling",
                    "recursive_multiplying",
                    "reduce_scatter_allgather",
                    "k_reduce_scatter_allgather",
                    "tree",
                    "recexch",
                    "ring",
                ),
                segment_variable="MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE",
                segmented=("tree",),
                restart="communicator",
                source=VARS,
            ),
            Spelling(
                knob="broadcast_algorithm",
                variables={"MPIR_CVAR_BCAST_INTRA_ALGORITHM": "auto"},
                values=OneOf(
                    {
                        "auto": "auto",
                        "smp": "smp",
                        "binomial": "binomial",
                        "scatter_allgather": "scatter_recursive_doubling_allgather",
                        "scatter_ring_allgather": "scatter_ring_allgather",
                        "pipelined_tree": "pipelined_tree",
                        "tree": "tree",
                    }
                ),
                note="scatter_allgather: np must be a power of two",
                segment_variable="MPIR_CVAR_BCAST_TREE_PIPELINE_CHUNK_SIZE",
                segmented=("pipelined_tree",),
                rank_limits={"scatter_allgather": POWER_OF_TWO_RANKS},
                restart="communicator",
                source=VARS,
            ),
            Spelling(
                knob="allgather_algorithm",
                variables={"MPIR_CVAR_ALLGATHER_INTRA_ALGORITHM": "auto"},
                values=OneOf(
                    {
                        "auto": "auto",
                        "bruck": "brucks",
                        "k_bruck": "k_brucks",
                        "recursive_doubling": "recursive_doubling",
                        "ring": "ring",
                        "recexch_doubling": "recexch_doubling",
                        "recexch_halving": "recexch_halving",
                    }
                ),
                note="recursive_doubling: np must be a power of two",
                rank_limits={"recursive_doubling": POWER_OF_TWO_RANKS},
                restart="communicator",
                source=VARS,
            ),
            Spelling(
                knob="gather_algorithm",
                variables={"MPIR_CVAR_GATHER_INTRA_ALGORITHM": "auto"},
                values=OneOf.of("auto", "binomial"),
                restart="communicator",
                source=VARS,
            ),
            Spelling(
                knob="segment_size",
                variables={
                    "MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE": "0",
                    "MPIR_CVAR_BCAST_TREE_PIPELINE_CHUNK_SIZE": "8192",
                },
                values=Bytes(0, LARGEST_INT),
                unit="bytes",
                note="applies only to allreduce_algorithm=tree and broadcast_algorithm=pipelined_tree",
                restart="communicator",
                source=VARS,
            ),
            Spelling(
                knob="binding",
                variables={"HYDRA_BINDING": "none"},
                values=OneOf.of("none", "core", "socket", "numa"),
                source="mpiexec.hydra -bind-to -help",
            ),
            Spelling(
                knob="socket_interfaces",
                variables={"FI_TCP_IFACE": ""},
                values=Names("an interface", several=False),
                transport="ofi",
                note="needs libfabric's tcp provider; over ucx, this is a knob of UCX",
                source="fi_tcp(7) of libfabric",
            ),
        ),
    )
)
