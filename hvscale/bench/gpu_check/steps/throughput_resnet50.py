"""Throughput of ResNet-50 on images of 224x224 pixels."""

from hvscale.bench.gpu_check.rank_side.requests import Request
from hvscale.bench.gpu_check.step import RANK_SIDE, StepContext, step
from hvscale.bench.gpu_check.steps._throughput import measure

TITLES = {"cuda": "ResNet-50", "cpu": "a small classifier"}
REQUESTS = {
    "cuda": Request("resnet50", {"num_classes": 1000}, side=224, batch=128, device="cuda", rounds=3, seconds=4),
    # A small classifier in its place: a CPU compiles ResNet-50 for minutes.
    "cpu": Request(
        f"{RANK_SIDE}.models:classifier", {"num_classes": 1000}, side=32, batch=2, device="cpu", rounds=1, seconds=0.2
    ),
}


@step(
    "throughput-resnet50",
    "ResNet-50, 224x224 images: images/s in the same variants, share of the bf16 peak, memory",
    order=85,
    limit_seconds=230,
)
def throughput_resnet50(context: StepContext) -> None:
    measure(context, TITLES[context.device], REQUESTS[context.device], None)
