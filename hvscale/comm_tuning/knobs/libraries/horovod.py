"""Horovod 0.28: environment variables, read at hvd.init() with every flavour."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import Bytes, Milliseconds, Names, Switch, WholeNumber

HELP = "horovodrun --help"

register(
    KnobLibrary(
        key="horovod",
        name="Horovod",
        spellings=(
            Spelling(
                knob="fusion_threshold",
                variables={"HOROVOD_FUSION_THRESHOLD": "134217728"},
                values=Bytes(0, 2**63 - 1),
                unit="bytes",
                restart="init",
                source=HELP,
            ),
            Spelling(
                knob="cycle_time",
                variables={"HOROVOD_CYCLE_TIME": "1"},
                values=Milliseconds(),
                unit="ms",
                restart="init",
                source=HELP,
            ),
            Spelling(
                knob="cache_capacity",
                variables={"HOROVOD_CACHE_CAPACITY": "1024"},
                values=WholeNumber(0, 2**31 - 1),
                unit="tensors",
                restart="init",
                source=HELP,
            ),
            Spelling(
                knob="hierarchical_allreduce",
                variables={"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"},
                values=Switch(),
                restart="init",
                note="needs several nodes, and a Horovod built with NCCL",
                source=HELP,
            ),
            Spelling(
                knob="thread_affinity",
                variables={"HOROVOD_THREAD_AFFINITY": ""},
                values=Names("numbers of cores", pattern=r"[0-9]{1,5}"),
                restart="init",
                source=HELP,
            ),
        ),
    )
)
