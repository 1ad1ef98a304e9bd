"""What is installed, and whether the GPU computes right."""

from hvscale.bench.gpu_check.chips import chip_of
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.core.units import GIB


@step(
    "environment",
    "PyTorch, Horovod, NCCL and compilers; matrix products and convolutions of each type against fp64",
    order=10,
    limit_seconds=40,
)
def environment(context: StepContext) -> None:
    machine = context.machine
    gpu(context)
    with context.claim("matrix products and convolutions are right"):
        done = context.run("arithmetic", context.program("arithmetic", context.device))
        for row in context.parse(done.stdout, "arithmetic")["dtypes"]:
            errors = {name: row[name] for name in ("matrix_product", "convolution")}
            context.hold(
                f"{row['dtype']}: matrix products and convolutions are right",
                max(errors.values()) <= row["limit"],
                f"largest relative error {max(errors.values()):.2g}, allowed {row['limit']:.2g}",
                "the results differ from fp64 on the CPU",
                **{f"{name}_relative_error": value for name, value in errors.items()},
            )
    if not context.needs_gpu("Horovod is built with NCCL", "a Horovod for CPUs needs no NCCL"):
        context.hold(
            "Horovod is built with NCCL",
            bool(machine.nccl_in_horovod),
            f"Horovod {machine.horovod or 'none'}, NCCL {machine.nccl_text}",
            "build Horovod with NCCL: HVSCALE_NCCL=1 make setup",
        )
    compiler = f"Triton {machine.triton or 'none'}, C compiler {machine.compiler or 'none'}"
    if machine.triton is None or machine.compiler is None:
        context.not_possible("torch.compile has what it needs", f"{compiler}: install both for --compile")
    else:
        context.hold("torch.compile has what it needs", True, compiler)


def gpu(context: StepContext) -> None:
    machine = context.machine
    if context.needs_gpu("the GPU is known, with its peak", "there is none"):
        return
    name, chip = machine.gpus[0], chip_of(machine.gpus[0])
    memory = machine.gpu_memory_bytes[0]
    found = f"{len(machine.gpus)} x {name}, {memory / GIB:.0f} GiB, driver {machine.driver or 'unknown'}"
    context.hold("PyTorch computes on the GPU", True, found, gpus=len(machine.gpus), memory_bytes=memory)
    if chip is None:
        context.not_possible("the chip's bf16 peak is known", f"{name} is not in hvscale's table of chips")
    else:
        peak = f"{chip.peak_flops / 1e12:g} TFLOP/s, {chip.source}"
        context.hold("the chip's bf16 peak is known", True, peak, peak_flops=chip.peak_flops)
