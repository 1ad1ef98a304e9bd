"""hvprof's NCCL plug-in: what it counts, what it costs, and the breakdown made from it."""

from collections import Counter
from statistics import median
from typing import Any

from hvscale.bench.gpu_check.rank_side.messages import MESSAGES
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.run_folder import RunFolder
from hvscale.core.units import human_bytes, human_seconds

NP = 2
ROUNDS = {"cuda": 3, "cpu": 1}
TIMED_CALLS = {"cuda": 500, "cpu": 100}
MOST_HOST_SECONDS = 20e-6  # that recording may add to the host's time for one call


@step(
    "nccl-plugin",
    "the NCCL plug-in's counts and bytes against what was sent, its breakdown, its cost per call",
    order=30,
    limit_seconds=90,
)
def nccl_plugin(context: StepContext) -> None:
    with context.claim("the plug-in counts each call and its bytes"):
        run = context.launch("counted", NP, messages(context, "all"), verb="profile", mpi=context.launcher_beside_nccl)
        counts(context, run)
    with context.claim("recording a call costs little"):
        cost(context)


def messages(context: StepContext, calls: object) -> list[str]:
    return context.program("messages", context.device, calls)


def counts(context: StepContext, run: RunFolder) -> None:
    """Compare the breakdown of `run` with the calls that its ranks made."""
    breakdown = context.hvscale_json("breakdown", "breakdown", run.path)
    calls, sent = recorded(breakdown)
    expected_calls: Counter[str] = Counter()
    expected_bytes: Counter[str] = Counter()
    for message in MESSAGES:
        expected_calls[message.operation] += NP * message.calls
        expected_bytes[message.operation] += NP * message.calls * message.bytes
    source = "the NCCL plug-in" if context.on_gpu else "hvprof (MPI)"
    for operation, number in expected_calls.items():
        total = expected_bytes[operation]
        context.hold(
            f"{operation}: calls and bytes in the breakdown are those sent",
            (calls[operation], sent[operation]) == (number, total),
            f"{source}: {calls[operation]} calls, {human_bytes(sent[operation])}",
            f"sent: {number} calls, {total} bytes; recorded: {calls[operation]} calls, {sent[operation]} bytes",
            calls=calls[operation],
            calls_sent=number,
            bytes=sent[operation],
            bytes_sent=total,
        )
    if context.needs_gpu("NCCL loads the plug-in and times calls on the GPU", "NCCL runs on GPUs only"):
        return
    untimed = [text for text in breakdown.get("warnings", []) if "GPU time" in text or "timed by the host" in text]
    files = len(list(run.hvprof.glob("nccl-*.hvn")))
    context.hold(
        "NCCL loads the plug-in and times calls on the GPU",
        files == NP and (not untimed or context.machine.nccl < (2, 27)),
        f"{files} files of NCCL {context.machine.nccl_text}",
        "; ".join(untimed) or f"{NP} ranks, but {files} files nccl-*.hvn",
        files=files,
    )


def recorded(breakdown: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """Calls and bytes by operation, summed over ranks and sizes."""
    calls: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for row in breakdown["rows"]:
        calls[row["operation"]] += row["calls"]
        sent[row["operation"]] += row["bytes"]
    return calls, sent


def cost(context: StepContext) -> None:
    """Time small all-reduces with and without recording, interleaved."""
    seconds: dict[tuple[str, str], list[float]] = {}
    calls = TIMED_CALLS[context.device]
    for number in range(ROUNDS[context.device]):
        for verb in ("launch", "profile"):
            run = context.launch(
                f"{verb}-{number}", NP, messages(context, calls), verb=verb, mpi=context.launcher_beside_nccl
            )
            for rank in context.rank_results(run, NP):
                for name in ("host_seconds", "seconds"):
                    seconds.setdefault((verb, name), []).append(rank[name])
    host, whole = (
        median(seconds["profile", name]) - median(seconds["launch", name]) for name in ("host_seconds", "seconds")
    )
    context.hold_timing(
        f"recording adds at most {human_seconds(MOST_HOST_SECONDS)} of the host's time to a call",
        host <= MOST_HOST_SECONDS,
        f"host: {signed(host)} on {human_seconds(median(seconds['launch', 'host_seconds']))}; "
        f"whole call: {signed(whole)} on {human_seconds(median(seconds['launch', 'seconds']))}",
        "the plug-in slows the calls down",
        host_cost_seconds=host,
        host_seconds=median(seconds["launch", "host_seconds"]),
        call_cost_seconds=whole,
        call_seconds=median(seconds["launch", "seconds"]),
    )


def signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{human_seconds(abs(seconds))}"
