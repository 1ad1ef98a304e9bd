"""MPICH 4 and 5 (ch4): control variables, read in MPI_Init."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import Bytes, Names, OneOf, Switch

VARS = "mpivars"
LARGEST_INT = 2**31 - 1


def is_power_of_two(np: int) -> bool:
    return np.bit_count() == 1


register(
    KnobLibrary(
        key="mpich",
        name="MPICH",
        flavours=("mpich",),
        spellings=(
            Spelling(
                knob="cuda_ipc",
                # There is no switch: messages from this size on, or from buffers that come again, go through IPC.
                variables={"MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD": "1048576"},
                values=Switch(on="1048576", off=str(LARGEST_INT)),
                along={"MPIR_CVAR_CH4_IPC_MAP_REPEAT_ADDR": "0"},
                along_for=False,
                needs="a build with CUDA; off: MPIR_CVAR_CH4_IPC_MAP_REPEAT_ADDR=0, set along; over ucx UCX has it, too",
                source=VARS,
            ),
            Spelling(
                knob="registration_cache",
                variables={"FI_MR_CACHE_MAX_COUNT": "1024"},
                values=Switch(on="1024", off="0"),
                transport="ofi",
                needs="over ucx it is UCX's",
                source="fabric(7) of libfabric",
            ),
            Spelling(
                knob="transport",
                variables={"--transport": ""},
                values=OneOf.of("ucx", "ofi"),
                needs="sets MPIR_CVAR_CH4_NETMOD",
                source="mpichversion",
            ),
            Spelling(
                knob="eager_threshold",
                variables={"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "-1"},
                values=Bytes(0, LARGEST_INT),
                unit="bytes",
                transport="ofi",
                needs="over ucx it is UCX's",
                source=VARS,
            ),
            Spelling(
                knob="yield_when_idle",
                variables={"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "0"},
                values=Switch(),
                needs="on: it sleeps 1 us after every 4096 looks in vain",
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
                needs="scatter_allgather: np a power of two",
                segment_variable="MPIR_CVAR_BCAST_TREE_PIPELINE_CHUNK_SIZE",
                segmented=("pipelined_tree",),
                only_on={"scatter_allgather": is_power_of_two},
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
                needs="recursive_doubling: np a power of two",
                only_on={"recursive_doubling": is_power_of_two},
                source=VARS,
            ),
            Spelling(
                knob="gather_algorithm",
                variables={"MPIR_CVAR_GATHER_INTRA_ALGORITHM": "auto"},
                values=OneOf.of("auto", "binomial"),
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
                needs="allreduce_algorithm tree, or broadcast_algorithm pipelined_tree",
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
                needs="libfabric's provider tcp; over ucx it is UCX's",
                source="fi_tcp(7) of libfabric",
            ),
        ),
    )
)
