"""SEARCH_SPACE: the values of each knob worth trying, and the jobs for which they matter.

A new knob is one entry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hvscale.comm_tuning.tune.job_profile import JobProfile
from hvscale.core.run_folder import is_own_command
from hvscale.core.units import KIB, MIB, human_bytes
from hvscale.launch.flavours import LIBRARY_DECIDES

# Returns the reason why the knob cannot matter to this job, or None.
Condition = Callable[[JobProfile], str | None]
DEFAULT = "default"  # leaves the knob unset; used if no value of the library is its default
RDMA_ADAPTERS = Path("/sys/class/infiniband")
HUGE_PAGE_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MIN_TIME_SHARE = 0.01  # of the communication time, below which an operation is not tuned


@dataclass(frozen=True)
class SearchedKnob:
    """How one knob is searched.

    `values`: as for --set, without the default. `needs`: conditions on the job. `ordered`: the
    values are numbers, so neighbours behave alike. `only_with`: the knob has an effect only with
    one of these values of other knobs. `not_with`: it has next to no effect with these values of
    other knobs, which come before it in SEARCH_SPACE. `only_if_named`: the reason why only --knobs
    includes it, or without `values` why it is never searched. `varies`: its default depends on
    where the ranks run.
    """

    knob: str
    values: tuple[str, ...] | Callable[[JobProfile], tuple[str, ...]] = ()
    needs: tuple[Condition, ...] = ()
    ordered: bool = False
    only_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only_if_named: str = ""
    varies: bool = False


def horovod(job: JobProfile) -> str | None:
    return None if job.horovod else "the profile shows no Horovod"


def several_nodes(job: JobProfile) -> str | None:
    return None if job.nodes > 1 else "only one node"


def several_ranks_per_node(job: JobProfile) -> str | None:
    return None if job.ranks_per_node > 1 else "only one rank on each node"


def gpus(job: JobProfile) -> str | None:
    return None if job.gpus else "no GPU"


def no_gpus(job: JobProfile) -> str | None:
    return "the job computes on GPUs" if job.gpus else None


def nccl(job: JobProfile) -> str | None:
    return None if job.source == "nccl" else "the profile shows no NCCL messages"


def rdma(job: JobProfile) -> str | None:
    there = any(RDMA_ADAPTERS.glob("*"))
    return None if there else "no RDMA adapter on this machine; other networks register no memory"


def huge_pages_on_request(job: JobProfile) -> str | None:
    """Mode `always` gives them to every program, and `never` to none."""
    modes = HUGE_PAGE_MODES.read_text() if HUGE_PAGE_MODES.exists() else ""
    return None if "[madvise]" in modes else f"programs cannot ask for huge pages: {HUGE_PAGE_MODES} is not madvise"


def enough_cores(job: JobProfile) -> str | None:
    if job.cores >= job.ranks_per_node:
        return None
    return f"{job.ranks_per_node} ranks share {job.cores} cores: binding would keep ranks off free cores"


def threads_not_set_by_trainer(job: JobProfile) -> str | None:
    is_trainer = is_own_command(job.command, "train")
    return "hvscale train sets the threads itself (--threads)" if is_trainer else None


def eager_limit(job: JobProfile) -> str | None:
    """UCX's limit is also that of shared memory. Open MPI chooses UCX itself only for adapters that
    it supports, which are RDMA adapters.
    """
    may_use_ucx = job.transport == "ucx" or (job.transport == LIBRARY_DECIDES and rdma(job) is None)
    if job.nodes != 1 or may_use_ucx:
        return None
    return "only one node: shared memory has a separate limit"


def sends(operation: str) -> Condition:
    def check(job: JobProfile) -> str | None:
        found = job.messages.get(operation)
        if found is None:
            return f"no {operation} in the steps"
        return (
            None if found.share >= MIN_TIME_SHARE else f"{operation} takes {found.share:.1%} of the communication time"
        )

    return check


def messages_above(size: int) -> Condition:
    def check(job: JobProfile) -> str | None:
        largest = max((found.largest for found in job.messages.values()), default=0)
        if largest > size:
            return None
        return f"no message above {human_bytes(size)}; the largest has {human_bytes(largest)}"

    return check


def broadcasts_from(size: int) -> Condition:
    def check(job: JobProfile) -> str | None:
        largest = job.messages["broadcast"].largest if "broadcast" in job.messages else 0
        if largest >= size:
            return None
        return f"no broadcast of {human_bytes(size)} or more; the largest has {human_bytes(largest)}"

    return check


def threads_per_rank(job: JobProfile) -> tuple[str, ...]:
    """Powers of two, up to a rank's share of the cores."""
    share = max(1, job.cores // job.ranks_per_node)
    return tuple(str(1 << power) for power in range(share.bit_length()))


def thresholds_below_step_bytes(job: JobProfile) -> tuple[str, ...]:
    """Thresholds below the bytes of a step, and the default; larger ones all behave alike."""
    below = job.step_bytes or 256 * MIB + 1
    return tuple(f"{size}M" for size in (1, 4, 8, 16, 32, 64, 128, 256) if size * MIB < below or size == 128)


ALLREDUCE_SEGMENTS = ("segmented_ring", "tree")
BROADCAST_SEGMENTS = ("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "pipelined_tree")
OWN_BROADCASTS = ("chain", "two_level")

SEARCH_SPACE = (
    SearchedKnob("fusion_threshold", thresholds_below_step_bytes, (horovod, sends("allreduce")), ordered=True),
    SearchedKnob("cycle_time", ("0.1", "0.5", "1", "2.5", "5", "10", "25"), (horovod,), ordered=True),
    SearchedKnob(
        "cache_capacity",
        ("0", "256", "1024", "4096"),
        (horovod,),
        ordered=True,
        only_if_named="it matters only for models with more tensors than the default",
    ),
    SearchedKnob("hierarchical_allreduce", ("on",), (horovod, nccl, several_nodes, several_ranks_per_node)),
    SearchedKnob(
        "allreduce_algorithm",
        (
            *("ring", "segmented_ring", "recursive_doubling", "reduce_scatter_allgather", "reduce_broadcast"),
            *("tree", "recexch", "k_reduce_scatter_allgather", "smp"),
        ),
        (sends("allreduce"),),
    ),
    SearchedKnob("hvscale_broadcast", OWN_BROADCASTS, (sends("broadcast"), broadcasts_from(64 * KIB))),
    SearchedKnob(
        "broadcast_algorithm",
        (
            *("binomial", "pipeline", "chain", "split_binary_tree", "scatter_allgather", "scatter_ring_allgather"),
            *("knomial", "pipelined_tree", "tree"),
        ),
        (sends("broadcast"),),
        not_with={"hvscale_broadcast": OWN_BROADCASTS},  # then the library broadcasts small messages only
    ),
    SearchedKnob("allgather_algorithm", only_if_named="training sends few of them; set it with --fix"),
    SearchedKnob("gather_algorithm", only_if_named="training sends few of them; set it with --fix"),
    SearchedKnob(
        "segment_size",
        ("32K", "128K", "512K", "1M"),
        (messages_above(MIB),),
        ordered=True,
        only_with={"allreduce_algorithm": ALLREDUCE_SEGMENTS, "broadcast_algorithm": BROADCAST_SEGMENTS},
    ),
    SearchedKnob(
        "eager_threshold",
        ("16K", "64K", "256K", "1M", "4M"),
        (eager_limit, messages_above(16 * KIB)),
        ordered=True,
    ),
    SearchedKnob("cuda_ipc", ("on", "off"), (gpus, several_ranks_per_node)),
    SearchedKnob("registration_cache", ("on", "off"), (rdma,)),
    SearchedKnob("visible_devices", ("own", "all", "split"), (gpus, several_ranks_per_node)),
    SearchedKnob("nccl_algorithm", ("ring", "tree"), (nccl,)),
    # Not ll128: it corrupts data on GPUs for which NCCL does not choose it.
    SearchedKnob("nccl_protocol", ("ll", "simple"), (nccl,)),
    SearchedKnob("nccl_channels", ("1", "2", "4", "8", "16", "32"), (nccl,), ordered=True),
    SearchedKnob("nccl_buffer_size", ("1M", "2M", "4M", "8M", "16M"), (nccl, messages_above(MIB)), ordered=True),
    SearchedKnob(
        "nccl_threads",
        ("64", "128", "256", "512"),
        (nccl,),
        ordered=True,
        only_if_named="NCCL's own choice is rarely beaten",
    ),
    SearchedKnob("yield_when_idle", ("on", "off"), varies=True),
    SearchedKnob("threads", threads_per_rank, (no_gpus, threads_not_set_by_trainer), ordered=True),
    SearchedKnob("huge_pages", ("on",), (no_gpus, huge_pages_on_request, messages_above(2 * MIB))),
    SearchedKnob("binding", ("none", "core", "socket", "numa"), (enough_cores,)),
    SearchedKnob("thread_affinity", only_if_named="which core is free depends on the binding; set it with --fix"),
    SearchedKnob("transport", only_if_named="it decides which other knobs exist; tune each transport, set with --fix"),
    SearchedKnob("socket_interfaces", only_if_named="the network that reaches all nodes is known; set it with --fix"),
)

# Combinations that were faster elsewhere, some only together. They are tried first.
PROMISING: tuple[Mapping[str, str], ...] = (
    {"yield_when_idle": "on"},
    {"huge_pages": "on"},
    {"eager_threshold": "1M"},
    {"allreduce_algorithm": "ring", "eager_threshold": "1M"},
    {"allreduce_algorithm": "ring"},
    {"allreduce_algorithm": "segmented_ring", "segment_size": "1M", "eager_threshold": "4M"},
)
