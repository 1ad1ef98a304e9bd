"""Horovod's collectives over NCCL, on one rank and on several that may share a GPU."""

from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.run_folder import RunFolder
from hvscale.core.units import human_bytes, human_seconds
from hvscale.launch import flavours

NPS = {"cuda": (1, 2, 4), "cpu": (1, 2)}
TIMED = {"cuda": (16 << 20, 10), "cpu": (64 << 10, 2)}  # bytes, calls


@step(
    "horovod-nccl",
    "Horovod over NCCL on 1, 2 and 4 ranks, which may share one GPU: every collective checked",
    order=20,
    limit_seconds=70,
)
def horovod_nccl(context: StepContext) -> None:
    for np in NPS[context.device]:
        claim = f"Horovod on {np} ranks" if np > 1 else "Horovod on 1 rank"
        with context.claim(f"{claim}: every collective is right"):
            check(context, np, claim)


def check(context: StepContext, np: int, claim: str) -> None:
    size, calls = TIMED[context.device]
    # Horovod over some MPIs has no reduce-scatter; over NCCL it always has.
    has_it = context.on_gpu or flavours.get(context.mpi).reduce_scatter_in_horovod
    arguments = (context.device, size, calls, *(["--reduce-scatter"] if has_it else []))
    run = context.launch(f"np-{np}", np, context.program("horovod_collectives", *arguments))
    results = context.rank_results(run, np)
    wrong = sorted({f"{text} on rank {rank}" for rank, one in enumerate(results) for text in one["wrong"]})
    checked = sum(one["checked"] for one in results)
    seconds = max(one["allreduce_seconds"] for one in results)
    right = not wrong and all(one["size"] == np for one in results)
    context.hold(
        f"{claim}: every collective is right",
        right,
        f"{checked} results checked; all-reduce of {human_bytes(size)}: {human_seconds(seconds)}",
        f"wrong: {', '.join(wrong[:4])}" if wrong else f"the ranks do not form one job of {np}",
        checked=checked,
        allreduce_seconds=seconds,
        allreduce_bytes=size,
    )
    if context.needs_gpu(f"{claim}: NCCL carries the tensors", "NCCL sends GPU memory only"):
        return
    if not context.machine.nccl_in_horovod:
        context.not_possible(f"{claim}: NCCL carries the tensors", "this Horovod is built without NCCL")
        return
    library = nccl_in(run)
    context.hold(f"{claim}: NCCL carries the tensors", bool(library), library, "the ranks' NCCL wrote no log")


def nccl_in(run: RunFolder) -> str:
    """NCCL with its version as the ranks reported it; empty if no rank used it."""
    libraries = [reported.library for reported in run.read().settings_in_effect]
    return next((library for library in libraries if library.startswith("NCCL ")), "")
