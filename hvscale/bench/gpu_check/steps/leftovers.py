"""What the ranks left: processes, and memory on the GPUs."""

import time

from hvscale.bench.gpu_check.gpu_memory import used_bytes
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.units import human_bytes

CLAIM = "the ranks' GPU memory after their end: none"
# The driver's own bookkeeping may move by a few MiB.
MOST_BYTES = 32 << 20
WAIT_SECONDS = 10.0  # the driver frees the memory of a killed process a little later


@step("leftovers", "no process of a rank is left, and no GPU memory", order=110, limit_seconds=20)
def leftovers(context: StepContext) -> None:
    left = context.left_processes
    context.hold(
        "no process of a rank is left after a step", not left, "none", f"left: {'; '.join(left[:4])}", left=len(left)
    )
    if context.needs_gpu(CLAIM, "there is no GPU memory"):
        return
    before = list(context.gpu_memory_at_start)
    now = used_bytes()
    if not before or len(now) != len(before):
        context.not_possible(CLAIM, "nvidia-smi does not report the memory in use")
        return
    until = time.monotonic() + WAIT_SECONDS
    while max_growth(before, now) > MOST_BYTES and time.monotonic() < until:
        time.sleep(1)
        now = used_bytes() or now
    growth = max_growth(before, now)
    context.hold(
        CLAIM,
        growth <= MOST_BYTES,
        f"in use: {human_bytes(max(before))} at the start, {human_bytes(max(now))} now",
        f"{human_bytes(growth)} more than at the start; `nvidia-smi` lists the processes that hold it",
        before_bytes=max(before),
        after_bytes=max(now),
    )


def max_growth(before: list[int], now: list[int]) -> int:
    return max(max(0, after - earlier) for earlier, after in zip(before, now, strict=True))
