"""Compares gradients averaged as bf16 with their averages in fp32, several times."""

import json

import horovod.torch as hvd
import torch
from torch import nn

from hvscale.trainer.system import bf16_allreduce

hvd.init()
torch.manual_seed(hvd.rank())
bf16_allreduce.BUCKET_BYTES = 600  # several buckets of a few parameters
parameters = [nn.Parameter(torch.zeros(shape)) for shape in [(3, 5), (1,), (7, 7), (129,), (2, 3, 4), (64, 3)]]
averages = bf16_allreduce.Bf16Allreduce(hvd, parameters, passes=2)
difference, unequal = 0.0, 0
for step in range(3):
    for parameter in parameters:
        parameter.grad = None
    # Only rank 0 uses the fifth parameter, and no rank uses the last.
    used = parameters[: 5 if hvd.rank() == 0 else 4]
    for _ in range(2):
        torch.stack([(parameter * torch.randn_like(parameter)).sum() for parameter in used]).sum().backward()  # type: ignore[no-untyped-call]
    own = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in parameters]
    averages.finish()
    for number, (parameter, gradient) in enumerate(zip(parameters, own, strict=True)):
        expected = hvd.allreduce(gradient, name=f"{step}.{number}", op=hvd.Average)
        found = parameter.grad
        assert found is not None
        assert found.dtype == torch.float32
        scale = float(hvd.allreduce(gradient.abs().max().view(1), name=f"max.{step}.{number}", op=hvd.Sum))
        difference = max(difference, float((found - expected).abs().max()) / max(scale, 1e-9))
        everyone = hvd.allgather(found.flatten(), name=f"all.{step}.{number}").view(hvd.size(), -1)
        unequal += int((everyone != everyone[0]).sum())
if hvd.rank() == 0:
    print(
        json.dumps({"size": hvd.size(), "buckets": len(averages.buckets), "difference": difference, "unequal": unequal})
    )
