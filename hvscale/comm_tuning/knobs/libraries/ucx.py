"""UCX, which Open MPI's pml ucx and MPICH's ch4:ucx use."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, Target, register
from hvscale.comm_tuning.knobs.values import Bytes, Names, Switch
from hvscale.launch.flavours import FLAVOURS, LIBRARY_DECIDES

INFO = "ucx_info -c -f"
# The names that UCX_TLS accepts, including aliases.
TRANSPORTS = (
    *("all", "sm", "shm", "mm", "posix", "sysv", "xpmem", "knem", "cma", "ugni", "self", "tcp", "ib"),
    *("rc_v", "rc_x", "rc", "ud_v", "ud_x", "ud", "dc", "dc_x", "srd"),
    *("cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "ze"),
)


def in_job(target: Target) -> bool:
    return target.transport in ("ucx", LIBRARY_DECIDES)


register(
    KnobLibrary(
        key="ucx",
        name="UCX",
        flavours=tuple(name for name, flavour in FLAVOURS.all().items() if "ucx" in flavour.layers),
        in_job=in_job,
        spellings=(
            Spelling(
                knob="cuda_ipc",
                variables={"UCX_TLS": "all"},
                values=Switch(on="all", off="^cuda_ipc"),
                note="on needs a build with CUDA",
                source=INFO,
            ),
            Spelling(
                knob="registration_cache",
                variables={"UCX_RCACHE_ENABLE": "try"},
                values=Switch(on="y", off="n"),
                source=INFO,
            ),
            Spelling(
                knob="transport",
                variables={"UCX_TLS": "all"},
                values=Names("transports of UCX", known=TRANSPORTS, alone="all"),
                source=INFO,
            ),
            Spelling(
                knob="eager_threshold",
                variables={"UCX_RNDV_THRESH": "intra:auto,inter:auto"},
                values=Bytes(0, 2**63 - 1),
                unit="bytes",
                source=INFO,
            ),
            Spelling(
                knob="socket_interfaces",
                variables={"UCX_NET_DEVICES": "all"},
                values=Names("devices of UCX, such as eth0 or mlx5_0:1", alone="all"),
                note="restricts all devices, including InfiniBand",
                source=INFO,
            ),
        ),
    )
)
