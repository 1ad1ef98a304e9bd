"""The steps that measure a model's throughput: their request, and the lines from its results."""

import json
from statistics import median
from typing import Any

from hvscale.bench.gpu_check.chips import chip_of
from hvscale.bench.gpu_check.commands import CommandFailedError
from hvscale.bench.gpu_check.rank_side.requests import VARIANTS, Request
from hvscale.bench.gpu_check.step import StepContext
from hvscale.core.files import read_text
from hvscale.core.run_folder import write_text
from hvscale.core.units import GIB, human_number

BASELINE = VARIANTS[0].name
# Forward and backward pass: the backward pass computes two products for each one of the forward
# pass (Kaplan et al., 2020, section 2.1).
TRAINING_FLOPS = 3


def measure(context: StepContext, title: str, request: Request, least_speed_up: float | None) -> None:
    """Add a line for each variant and, with `least_speed_up`, one for the fastest over fp32."""
    asked, results = context.folder / "request.json", context.folder / "results.jsonl"
    write_text(asked, json.dumps(vars(request)))
    failure: CommandFailedError | None = None
    try:
        context.run("throughput", context.program("throughput", asked, results))
    except CommandFailedError as error:
        failure = error  # the lines so far count
    flops, found = read_results(results)
    speeds: dict[str, float] = {}
    for variant in VARIANTS:
        line = found.get(variant.name, {})
        claim = f"{title}, {variant.name}: trains"
        if line.get("needs_gpu"):
            context.needs_gpu(claim, "TF32 and CUDA graphs exist on GPUs only")
        elif "images_per_second" in line:
            speeds[variant.name] = median(line["images_per_second"])
            add_speed(context, claim, line, speeds, flops)
        else:
            reason = line.get("problem") or (str(failure) if failure else "the program wrote no result")
            context.failed(claim, CommandFailedError(reason, failure.last_lines if failure else []))
    if least_speed_up is not None:
        add_speed_up(context, title, speeds, least_speed_up)
    if failure is not None:
        raise failure


def read_results(path: Any) -> tuple[float, dict[str, dict[str, Any]]]:
    """The FLOPs of a forward pass of one image, and the last line of each variant."""
    flops = 0.0
    found: dict[str, dict[str, Any]] = {}
    try:
        lines = read_text(path).splitlines(keepends=True)
    except OSError:
        return flops, found
    for text in lines:
        if not text.endswith("\n"):  # the program was killed while it wrote
            continue
        line = json.loads(text)
        if "forward_flops" in line:
            flops = float(line["forward_flops"])
        else:
            # A graph's variant is also prepared on the CPU, after it was named.
            found[line["name"]] = {
                **line,
                "needs_gpu": line.get("needs_gpu", found.get(line["name"], {}).get("needs_gpu")),
            }
    return flops, found


def add_speed(context: StepContext, claim: str, line: dict[str, Any], speeds: dict[str, float], flops: float) -> None:
    speed, memory = speeds[line["name"]], line["memory_bytes"]
    achieved = TRAINING_FLOPS * flops * speed
    chip = chip_of(context.machine.gpus[0]) if context.machine.gpus else None
    share = achieved / chip.peak_flops if chip is not None else None
    ratio = speed / speeds[BASELINE] if BASELINE in speeds else None
    facts = [
        f"{human_number(speed)} images/s",
        *([f"{ratio:.2f} x fp32"] if ratio is not None else []),
        f"{achieved / 1e12:.3g} TFLOP/s",
        *([f"{share:.1%} of the bf16 peak"] if share is not None else []),
        *([f"{memory / GIB:.3g} GiB"] if memory is not None else []),
    ]
    context.hold(
        claim,
        line["loss"] is not None,
        ", ".join(facts),
        "the loss is not finite",
        images_per_second=speed,
        images_per_second_low=min(line["images_per_second"]),
        images_per_second_high=max(line["images_per_second"]),
        speed_up=ratio,
        flops_per_second=achieved,
        peak_share=share,
        memory_bytes=memory,
        preparation_seconds=line["preparation_seconds"],
    )


def add_speed_up(context: StepContext, title: str, speeds: dict[str, float], least: float) -> None:
    claim = f"{title}: the fastest variant is at least {least:g} times fp32 eager"
    if BASELINE not in speeds or len(speeds) < 2:
        context.failed(claim, CommandFailedError("fp32 or every other variant has no figure", []))
        return
    fastest = max(speeds, key=lambda name: speeds[name])
    ratio = speeds[fastest] / speeds[BASELINE]
    context.hold_timing(
        claim,
        ratio >= least,
        f"{fastest}: {ratio:.2f} times",
        f"only {ratio:.2f} times",
        speed_up=ratio,
        least_speed_up=least,
    )
