"""Open MPI 4 and 5: MCA parameters, read in MPI_Init."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import Bytes, Names, OneOf, Switch

INFO = "ompi_info --all"
LARGEST_INT = 2**31 - 1
# coll han (priority 35 in release 5) would go first between nodes; what copies GPU buffers for the others (from 50 on) stays before it.
TUNED_FIRST = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_priority": "45"}
NEEDS_TUNED = (
    "coll_tuned_use_dynamic_rules=1, and coll tuned before coll han: both set along; coll hcoll and ucc go before it"
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
                needs="a build with CUDA, which not every one has; with pml ucx it is UCX's",
                source="ompi_info --all, of a build with CUDA",
            ),
            Spelling(
                knob="registration_cache",
                variables={"OMPI_MCA_mpi_leave_pinned": "auto"},
                values=Switch(),
                needs="an RDMA network; with pml ucx it is UCX's",
                source=INFO,
            ),
            Spelling(
                knob="transport",
                variables={"--transport": ""},
                values=OneOf.of("ob1", "ucx", "cm"),
                needs="sets pml",
                source=INFO,
            ),
            Spelling(
                knob="eager_threshold",
                variables={"OMPI_MCA_btl_tcp_eager_limit": "65536"},
                values=Bytes(1, 2**32 - 1),
                unit="bytes",
                transport="ob1",
                needs="messages over TCP; shared memory has a limit of its own, which fills its segment if it is large",
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
                needs=NEEDS_TUNED,
                along=TUNED_FIRST,
                segment_variable="OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize",
                segmented=("segmented_ring",),
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
                needs=NEEDS_TUNED,
                along=TUNED_FIRST,
                segment_variable="OMPI_MCA_coll_tuned_bcast_algorithm_segmentsize",
                segmented=("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
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
                needs="neighbor_exchange: an even np; two_ranks: np 2; sparbit: release 5; " + NEEDS_TUNED,
                along=TUNED_FIRST,
                only_on={"neighbor_exchange": lambda np: np % 2 == 0, "two_ranks": lambda np: np == 2},
                source=INFO,
            ),
            Spelling(
                knob="gather_algorithm",
                variables={"OMPI_MCA_coll_tuned_gather_algorithm": "ignore"},
                values=OneOf({"auto": "0", "linear": "1", "binomial": "2", "linear_sync": "3"}),
                needs=NEEDS_TUNED,
                along=TUNED_FIRST,
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
                needs="allreduce_algorithm or broadcast_algorithm set to one with segments; and " + NEEDS_TUNED,
                along=TUNED_FIRST,
                source=INFO,
            ),
            Spelling(
                knob="yield_when_idle",
                variables={"OMPI_MCA_mpi_yield_when_idle": "false"},
                values=Switch(on="true", off="false"),
                needs="by default on where Open MPI counts more ranks than cores, or hvscale puts so many nodes on one machine",
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
                needs="hvscale gives it to mpirun as --bind-to",
                source="mpirun --help bind-to",
            ),
            Spelling(
                knob="socket_interfaces",
                variables={"OMPI_MCA_btl_tcp_if_include": ""},
                values=Names("interfaces or subnets"),
                transport="ob1",
                needs="btl_tcp_if_exclude is not set",
                source=INFO,
            ),
        ),
    )
)
