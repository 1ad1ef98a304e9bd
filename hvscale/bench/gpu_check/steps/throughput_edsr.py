"""Throughput of the full EDSR x2 on patches of 48x48 pixels."""

from hvscale.bench.gpu_check.rank_side.requests import Request
from hvscale.bench.gpu_check.step import StepContext, step
from hvscale.bench.gpu_check.steps._throughput import measure

LEAST_SPEED_UP = 5.0
TITLES = {"cuda": "EDSR x2", "cpu": "a small EDSR x2"}
REQUESTS = {
    # The batch of Lim et al. (2017).
    "cuda": Request("edsr", {"scale": 2}, side=48, batch=16, device="cuda", rounds=3, seconds=6),
    "cpu": Request(
        "edsr", {"scale": 2, "n_resblocks": 1, "n_feats": 8}, side=16, batch=2, device="cpu", rounds=1, seconds=0.2
    ),
}


@step(
    "throughput-edsr",
    "EDSR x2, 48x48 patches: images/s in fp32, TF32, bf16, channels_last, compiled, CUDA graphs; at least 5 x fp32",
    order=80,
    limit_seconds=160,
)
def throughput_edsr(context: StepContext) -> None:
    measure(context, TITLES[context.device], REQUESTS[context.device], LEAST_SPEED_UP)
