"""nccl-tests' all-reduce beside hvscale's own figures, where it is installed and has its GPUs."""

import re
import shutil
from typing import Any

from hvscale.bench.gpu_check.step import StepContext, step

PROGRAM = "all_reduce_perf"
CLAIM = "bench allreduce agrees with nccl-tests"
NP = 2
BYTES = 64 << 20
# Both take the mean of consecutive calls; runs on a quiet machine differ by a few percent.
LEAST_SHARE = 0.8
# size, count, type, redop, root; time, algbw, busbw, wrong out of place; the same in place
ROW = re.compile(r"^\s*(\d+)\s+\d+\s+float\s+sum\s+-?\d+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)", re.MULTILINE)


@step(
    "nccl-tests",
    "nccl-tests' numbers beside bench allreduce, if all_reduce_perf is in PATH",
    order=70,
    limit_seconds=30,
)
def nccl_tests(context: StepContext) -> None:
    if context.needs_gpu(CLAIM, "nccl-tests runs on GPUs only"):
        return
    program = shutil.which(PROGRAM)
    if program is None:
        context.not_possible(CLAIM, f"{PROGRAM} is not in PATH: add the build folder of nccl-tests")
        return
    if len(context.machine.gpus) < NP:
        context.not_possible(CLAIM, f"nccl-tests needs a GPU for each rank, and {NP} ranks to send anything")
        return
    with context.claim(CLAIM):
        compare(context, program)


def compare(context: StepContext, program: str) -> None:
    size = str(BYTES)
    words = [program, "-b", size, "-e", size, "-g", NP, "-n", 20, "-w", 5]
    theirs = bus_bandwidth(context.run("nccl-tests", words).stdout)
    folder = context.folder / "bench"
    sizes = ("-b", size, "-e", size, "-n", "20", "-w", "5", "--in-place", "in", "--run", folder)
    document: dict[str, Any] = context.hvscale_json(
        "bench", "bench", "allreduce", "-np", NP, "--backend", "nccl", "--device", "cuda", *sizes
    )
    ours = max(row["busbw_gigabytes_per_second"] for row in document["rows"])
    context.hold(
        CLAIM,
        theirs is not None and ours >= LEAST_SHARE * theirs,
        f"64 MiB on {NP} GPUs: hvscale {ours:.4g} GB/s busbw, nccl-tests {theirs or 0:.4g} GB/s",
        "nccl-tests printed no row" if theirs is None else f"below {LEAST_SHARE:.0%} of nccl-tests",
        busbw_gigabytes_per_second=ours,
        nccl_tests_busbw_gigabytes_per_second=theirs,
    )


def bus_bandwidth(output: str) -> float | None:
    """The largest bus bandwidth out of place that nccl-tests printed, in 10^9 bytes a second."""
    return max((float(row[3]) for row in ROW.findall(output)), default=None)
