"""`hvscale bench`: GPU memory staged through the host, sent by a CUDA-aware MPI, and by NCCL."""

from dataclasses import dataclass
from typing import Any

from hvscale.bench.gpu_check.commands import CommandFailedError
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.errors import EXIT_WRONG_REQUEST
from hvscale.core.units import human_bytes, human_seconds

NP = 2
SIZES = {"cuda": "8,4K,256K,16M", "cpu": "8,4K,64K"}
CALLS = {"cuda": ("-n", "20", "-w", "3"), "cpu": ("-n", "2", "-w", "1")}


@dataclass(frozen=True)
class Path:
    """How a message leaves the GPU. `cuda`, `cpu`: the back end, where {mpi} is the flavour of
    --mpi; None: a dry run has nothing like it.
    """

    name: str
    cuda: str
    cpu: str | None
    dtypes: tuple[str, ...]


PATHS = (
    Path("staged", "{mpi}", "{mpi}", ("float32", "float16", "bfloat16")),
    # An MPI cannot add 16-bit floats in GPU memory.
    Path("aware", "{mpi}", None, ("float32",)),
    Path("nccl", "nccl", "gloo", ("float32", "float16", "bfloat16")),
    Path("horovod over nccl", "horovod-nccl", "horovod-{mpi}", ("float32", "float16")),
)
OPERATIONS = ("allreduce", "broadcast")


@step(
    "collectives",
    "bench allreduce and broadcast of GPU memory: staged, CUDA-aware, NCCL; fp32, fp16, bf16; checked",
    order=60,
    limit_seconds=130,
)
def collectives(context: StepContext) -> None:
    for path in PATHS:
        for operation in OPERATIONS:
            # One of the two is enough for the further types; a broadcast adds nothing up.
            for dtype in path.dtypes if operation == "allreduce" else path.dtypes[:1]:
                claim = f"{operation} of {dtype}, {path.name}: right"
                with context.claim(claim):
                    measure(context, path, operation, dtype, claim)


def measure(context: StepContext, path: Path, operation: str, dtype: str, claim: str) -> None:
    backend = path.cuda if context.on_gpu else path.cpu
    if backend is None:
        context.needs_gpu(claim, "a CUDA-aware MPI takes GPU memory only")
        return
    mpi = ("--mpi", context.mpi) if "{mpi}" in backend else ()
    words = [operation, "-np", NP, *mpi, "--backend", backend.format(mpi=context.mpi), "-d", dtype]
    memory = ["--device", context.device, *(("--path", path.name.split()[-1]) if context.on_gpu else ())]
    name = f"{operation}-{dtype}-{path.name.replace(' ', '-')}"
    folder = context.folder / name
    options = ["--sizes", SIZES[context.device], *CALLS[context.device], "--run", folder, *context.sharing_options(NP)]
    done = context.hvscale(name, "bench", *words, *memory, *options, "--json", statuses=(0, EXIT_WRONG_REQUEST))
    if done.status == EXIT_WRONG_REQUEST:
        reason = (done.last_lines or ["refused without a reason"])[-1].removeprefix("hvscale: ")
        context.not_possible(claim, reason)
        return
    document = context.parse(done.stdout, "bench --json")
    judge(context, claim, document)


def judge(context: StepContext, claim: str, document: dict[str, Any]) -> None:
    rows = document["rows"]
    if not rows:
        raise CommandFailedError("hvscale bench measured no size", [])
    wrong = sum(row["wrong"] or 0 for row in rows)
    smallest, largest = min(rows, key=lambda row: row["bytes"]), max(rows, key=lambda row: row["bytes"])
    context.hold(
        claim,
        wrong == 0 and all(row["wrong"] is not None for row in rows),
        f"{rows[0]['backend']}: {human_bytes(smallest['bytes'])}: {human_seconds(smallest['seconds'])}; {human_bytes(largest['bytes'])}: "
        f"{largest['busbw_gigabytes_per_second']:.3g} GB/s busbw",
        f"{wrong} wrong elements",
        small_bytes=smallest["bytes"],
        small_seconds=smallest["seconds"],
        large_bytes=largest["bytes"],
        busbw_gigabytes_per_second=largest["busbw_gigabytes_per_second"],
        wrong=wrong,
    )
