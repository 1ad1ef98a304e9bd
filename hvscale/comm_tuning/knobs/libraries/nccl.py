"""NCCL 2: environment variables, read once per process, at its first communicator."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, Target, register
from hvscale.comm_tuning.knobs.values import Bytes, Names, OneOf, Switch, WholeNumber
from hvscale.launch.mpi.horovod_build import horovod_library

GUIDE = "NCCL user guide, environment variables"


def in_job(target: Target) -> bool | None:
    """True if Horovod was built with NCCL, else None, because the program may use NCCL directly."""
    library = horovod_library(target.command, dict(target.environment))
    return True if library is not None and b"ncclAllReduce" in library.read_bytes() else None


def of_allreduce(algorithm: str) -> str:
    """The algorithm for all-reduce, and ring for the collectives that have no other.

    From NCCL 2.24 on, a broadcast fails if ring is not among its algorithms. Before 2.24, NCCL
    splits the list at commas only: it skips the first part, which it does not know, and takes the
    repeated algorithm.
    """
    return f"Ring;allreduce:{algorithm},{algorithm}"


register(
    KnobLibrary(
        key="nccl",
        name="NCCL",
        in_job=in_job,
        spellings=(
            Spelling(
                knob="cuda_ipc",
                variables={"NCCL_P2P_DISABLE": "0"},
                values=Switch(on="0", off="1"),
                source=GUIDE,
            ),
            Spelling(
                knob="registration_cache",
                variables={"NCCL_LOCAL_REGISTER": "1"},
                values=Switch(),
                note="applies only to buffers that the program registers",
                source=GUIDE,
            ),
            Spelling(
                knob="nccl_algorithm",
                variables={"NCCL_ALGO": ""},
                values=OneOf(
                    {
                        "ring": "Ring",
                        "tree": of_allreduce("Tree"),
                        "collnet_chain": of_allreduce("CollNetChain"),
                        "collnet_direct": of_allreduce("CollNetDirect"),
                        "nvls": of_allreduce("NVLS"),
                        "nvls_tree": of_allreduce("NVLSTree"),
                    }
                ),
                note="other collectives use ring, the only algorithm that NCCL has for all of them",
                source=GUIDE,
            ),
            Spelling(
                knob="nccl_protocol",
                variables={"NCCL_PROTO": ""},
                values=OneOf({"ll": "LL", "ll128": "LL128", "simple": "Simple"}),
                note="ll128 corrupts data on GPUs for which NCCL does not select it",
                source=GUIDE,
            ),
            Spelling(
                knob="nccl_channels",
                variables={"NCCL_MIN_NCHANNELS": "", "NCCL_MAX_NCHANNELS": ""},
                values=WholeNumber(1, 64),
                unit="channels",
                note="at most 32 channels before NCCL 2.19",
                source=GUIDE,
            ),
            Spelling(
                knob="nccl_buffer_size",
                variables={"NCCL_BUFFSIZE": "4194304"},
                values=Bytes(1, 2**31 - 1),
                unit="bytes",
                source=GUIDE,
            ),
            Spelling(
                knob="nccl_threads",
                variables={"NCCL_NTHREADS": "512"},
                values=OneOf.of("64", "128", "256", "512"),
                unit="threads",
                source=GUIDE,
            ),
            Spelling(
                knob="socket_interfaces",
                variables={"NCCL_SOCKET_IFNAME": ""},
                # Without the prefix, NCCL matches every interface whose name starts with this name.
                values=Names("interfaces", prefix="="),
                source=GUIDE,
            ),
        ),
    )
)
