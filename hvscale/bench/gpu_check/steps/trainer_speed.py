"""`hvscale train` itself on EDSR: its fastest settings beside fp32."""

from hvscale.bench.gpu_check.step import StepContext, step

STEPS = {"cuda": 40, "cpu": 3}
MODEL = {
    "cuda": ("--batch-size", 16),
    "cpu": ("--n-resblocks", 1, "--n-feats", 8, "--batch-size", 2, "--patch-size", 16),
}
VARIANTS = {
    "fp32": ("--precision", "fp32", "--memory-format", "contiguous"),
    "bf16 + channels_last": ("--precision", "bf16", "--memory-format", "channels-last"),
    "bf16 + channels_last, compiled": ("--precision", "bf16", "--memory-format", "channels-last", "--compile"),
}
CLAIM = "hvscale train is faster with bf16, channels_last and --compile than in fp32"


@step("trainer-speed", "hvscale train on EDSR: fp32, bf16 + channels_last, and compiled", order=88, limit_seconds=100)
def trainer_speed(context: StepContext) -> None:
    speeds: dict[str, float] = {}
    for number, (name, options) in enumerate(VARIANTS.items()):
        with context.claim(f"hvscale train edsr, {name}"):
            command = ["hvscale", "train", "edsr", "--data", "synthetic", "--steps", STEPS[context.device]]
            words = [*command, *MODEL[context.device], *options, "--stall-timeout", 100]
            # fp32 without TF32, which cuDNN uses by default.
            run = context.launch(f"variant-{number}", 1, words, "--env", "NVIDIA_TF32_OVERRIDE=0")
            result = context.read_json(run.path / "result.json")
            speeds[name] = result["images_per_second"]
            context.hold(
                f"hvscale train edsr, {name}",
                result["steps"] == STEPS[context.device] and speeds[name] > 0,
                f"{speeds[name]:.4g} images/s",
                f"{result['steps']} of {STEPS[context.device]} steps",
                images_per_second=speeds[name],
            )
    if len(speeds) == len(VARIANTS):
        fastest = max(speeds, key=lambda name: speeds[name])
        ratio = speeds[fastest] / speeds["fp32"]
        found = f"{fastest}: {ratio:.2f} times fp32"
        context.hold_timing(CLAIM, ratio > 1, found, "fp32 is the fastest", speed_up=ratio)
