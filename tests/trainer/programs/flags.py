"""On each of two ranks, for each of the options in the first argument (JSON): `Trainer`, and the
same steps computed here without Horovod.

The second argument is the folder of photos. Rank 0 prints a line of JSON for each.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.precision import ComputeFormat
from hvscale.trainer.system.sync_batch_norm import synchronise_batch_norm
from hvscale.trainer.tasks.super_resolution import SuperResolution
from hvscale.trainer.trainer import Trainer

CPU = torch.device("cpu")
FP32 = ComputeFormat("fp32", channels_last=False)


def adasum(a: Tensor, b: Tensor) -> Tensor:
    """Maleki et al. (2021), equation 4."""
    dot = (a * b).sum()
    return (1 - dot / (2 * a.square().sum())) * a + (1 - dot / (2 * b.square().sum())) * b


def joint(batch: int, config: TrainConfig, work: SuperResolution, ranks: Ranks) -> list[tuple[Tensor, Tensor]]:
    """What the ranks train on at once, as their own batch normalisation sees it, or
    synchronised.
    """
    by_rank = [work.to_device(loaded, CPU) for loaded in ranks.allgather(work.load_batch(batch))]
    if not config.sync_batch_norm:
        return by_rank
    return [(torch.cat([inputs for inputs, _ in by_rank]), torch.cat([targets for _, targets in by_rank]))]


def work_out(reference: nn.Module, config: TrainConfig, work: SuperResolution, ranks: Ranks) -> None:
    """The steps, by the formulas."""
    rate = 0.01 * (ranks.size * config.batches_per_allreduce if config.scale_learning_rate else 1)
    momentum = [torch.zeros_like(parameter) for parameter in reference.parameters()]
    for step in range(config.steps or 0):
        found = [
            torch.autograd.grad(FP32.loss(reference, *part, work.loss), list(reference.parameters()))
            for batch in range(step * config.batches_per_allreduce, (step + 1) * config.batches_per_allreduce)
            for part in joint(batch, config, work, ranks)
        ]
        if config.use_adasum:
            combined = [adasum(*pair) for pair in zip(*found, strict=True)]
        else:
            combined = [torch.stack(parts).mean(0) for parts in zip(*found, strict=True)]
        norm = torch.cat([gradient.flatten() for gradient in combined]).norm()
        if config.clip_norm is not None and norm > config.clip_norm:
            combined = [gradient * config.clip_norm / norm for gradient in combined]
        with torch.no_grad():
            for kept, parameter, gradient in zip(momentum, reference.parameters(), combined, strict=True):
                kept.mul_(0.9).add_(gradient)
                parameter.sub_(rate * kept)


def compare(config: TrainConfig, ranks: Ranks) -> dict[str, Any]:
    work = SuperResolution(config, ranks)
    torch.manual_seed(0)
    model, reference = work.build_model(), work.build_model()
    reference.load_state_dict(model.state_dict())
    work_out(reference, config, work, ranks)
    if config.sync_batch_norm:
        synchronise_batch_norm(model, ranks.hvd)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    Trainer(config, ranks, model, work, FP32).run()
    compared = dict(model.named_parameters()) | (dict(model.named_buffers()) if config.sync_batch_norm else {})
    expected = reference.state_dict()
    differ = max(
        float(((value - expected[name]).abs() / expected[name].abs().clamp(min=1)).max())
        for name, value in compared.items()
    )
    moved = max(float((value - start[name]).abs().max()) for name, value in model.named_parameters())
    everyone = ranks.allgather(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    return {"differ": differ, "moved": moved, "equal": torch.equal(*everyone)}


sys.path.insert(0, str(Path(__file__).parent))
ranks = Ranks()
for options in json.loads(sys.argv[1]):
    config = TrainConfig.of(
        model="small_net:net", batch_size=2, patch_size=8, optimizer="sgd", data=sys.argv[2], **options
    )
    found = compare(config, ranks)
    if ranks.rank == 0:
        print(json.dumps(found), flush=True)
