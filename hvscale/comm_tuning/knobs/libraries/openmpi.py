"""Open MPI 4 and 5: MCA parameters, read in MPI_Init."""

from hvscale.comm_tuning.knobs.library import (
    EVEN_RANKS,
    POWER_OF_TWO_RANKS,
    TWO_RANKS,
    KnobLibrary,
    Spelling,
    register,
)
from hvscale.comm_tuning.knobs.values import Bytes, Names, OneOf, Switch

INFO = "ompi_info --all"
LARGEST_INT = 2**31 - 1
# Above coll han (35 in release 5), which otherwise takes precedence between nodes, and below the
# components that copy GPU buffers for other components (50 and more).
TUNED_FIRST = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_priority": "45"}
NEEDS_TUNED = (
    "also sets coll_tuned_use_dynamic_rules=1 and a priority above coll han; coll hcoll and ucc still take precedence"
)

register(
    KnobLibrary(
        key="openmpi",
        name="Open MPI",
        flavours=("openmpi",),
        spellings=(
            Spelling(
                knob="cuda_ipc",
                variables={"OMPI_MCA_btl_smcuda_use_cuda_ipc": "true"},
                values=Switch(),
                transport="ob1",
                build="CUDA",
                note="needs a build with CUDA; with pml ucx, this is a knob of UCX",
                source="ompi_info --all, of a build with CUDA",
            ),
            Spelling(
                knob="registration_cache",
                variables={"OMPI_MCA_mpi_leave_pinned": "auto"},
                values=Switch(),
                note="needs an RDMA network; with pml ucx, this is a knob of UCX",
                source=INFO,
            ),
            Spelling(
                knob="transport",
                variables={"--transport": ""},
                values=OneOf.of("ob1", "ucx", "cm"),
                note="sets pml",
                source=INFO,
            ),
            Spelling(
                knob="eager_threshold",
                variables={"OMPI_MCA_btl_tcp_eager_limit": "65536"},
                # Below its header MPI_Init fails, and near 4 GiB jobs hang.
                values=Bytes(80, LARGEST_INT),
                unit="bytes",
                transport="ob1",
                note="applies to messages over TCP; shared memory has a separate limit",
                source=INFO,
            ),
            Spelling(
                knob="allreduce_algorithm",
                variables={"OMPI_MCA_coll_tuned_allreduce_algorithm": "ignore"},
                values=OneOf(
                    {
                        "auto": "0",
                        "linear": "1",
                        "reduce_broadcast": "2",
                        "recursive_doubling": "3",
                        "ring": "4",
                        "segmented_ring": "5",
                        "reduce_scatter_allgather": "6",
                    }
                ),
                note=NEEDS_TUNED,
                also_set=TUNED_FIRST,
                segment_variable="OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize",
                segmented=("segmented_ring",),
                restart="communicator",
                source=INFO,
            ),
            Spelling(
                knob="broadcast_algorithm",
                variables={"OMPI_MCA_coll_tuned_bcast_algorithm": "ignore"},
                values=OneOf(
                    {
                        "auto": "0",
                        "linear": "1",
                        "chain": "2",
                        "pipeline": "3",
                        "split_binary_tree": "4",
                        "binary_tree": "5",
                        "binomial": "6",
                        "knomial": "7",
                        "scatter_allgather": "8",
                        "scatter_ring_allgather": "9",
                    }
                ),
                note=NEEDS_TUNED,
                also_set=TUNED_FIRST,
                segment_variable="OMPI_MCA_coll_tuned_bcast_algorithm_segmentsize",
                segmented=("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
                restart="communicator",
                source=INFO,
            ),
            Spelling(
                knob="allgather_algorithm",
                variables={"OMPI_MCA_coll_tuned_allgather_algorithm": "ignore"},
                values=OneOf(
                    {
                        "auto": "0",
                        "linear": "1",
                        "bruck": "2",
                        "recursive_doubling": "3",
                        "ring": "4",
                        "neighbor_exchange": "5",
                        "two_ranks": "6",
                        "sparbit": "7",
                    }
                ),
                note="recursive_doubling: np must be a power of two; neighbor_exchange: np must be even; "
                "two_ranks: np must be 2; sparbit: needs release 5; " + NEEDS_TUNED,
                also_set=TUNED_FIRST,
                # With other numbers, the first two become bruck and ring, and the last one fails.
                rank_limits={
                    "recursive_doubling": POWER_OF_TWO_RANKS,
                    "neighbor_exchange": EVEN_RANKS,
                    "two_ranks": TWO_RANKS,
                },
                restart="communicator",
                source=INFO,
            ),
            Spelling(
                knob="gather_algorithm",
                variables={"OMPI_MCA_coll_tuned_gather_algorithm": "ignore"},
                values=OneOf({"auto": "0", "linear": "1", "binomial": "2", "linear_sync": "3"}),
                note=NEEDS_TUNED,
                also_set=TUNED_FIRST,
                restart="communicator",
                source=INFO,
            ),
            Spelling(
                knob="segment_size",
                variables={
                    "OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize": "0",
                    "OMPI_MCA_coll_tuned_bcast_algorithm_segmentsize": "0",
                },
                values=Bytes(0, LARGEST_INT),
                unit="bytes",
                note="applies only to allreduce_algorithm and broadcast_algorithm values with segments; " + NEEDS_TUNED,
                also_set=TUNED_FIRST,
                restart="communicator",
                source=INFO,
            ),
            Spelling(
                knob="yield_when_idle",
                variables={"OMPI_MCA_mpi_yield_when_idle": "false"},
                values=Switch(on="true", off="false"),
                note="on by default if Open MPI finds more ranks than cores, or if hvscale runs several nodes on one machine",
                source=INFO,
            ),
            Spelling(
                knob="binding",
                variables={"PRTE_MCA_hwloc_default_binding_policy": "none"},
                values=OneOf(
                    {
                        "none": "none",
                        "core": "core:overload-allowed",
                        "socket": "socket:overload-allowed",
                        "numa": "numa:overload-allowed",
                    }
                ),
                note="hvscale passes it to mpirun as --bind-to",
                source="mpirun --help bind-to",
            ),
            Spelling(
                knob="socket_interfaces",
                variables={"OMPI_MCA_btl_tcp_if_include": ""},
                values=Names("interfaces or subnets"),
                transport="ob1",
                note="btl_tcp_if_exclude must not be set",
                source=INFO,
            ),
        ),
    )
)
