"""Compares `Trainer` on two ranks with the same steps computed without Horovod.

The first argument is a JSON list of option sets, the second a folder of photos. Rank 0 prints a
line of JSON for each option set.
"""

import json
import sys
from contextlib import suppress
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


def batches_of_ranks(
    batch: int, config: TrainConfig, work: SuperResolution, ranks: Ranks
) -> list[tuple[Tensor, Tensor]]:
    """The batches of all ranks: separate, or joined if batch normalisation is synchronised."""
    by_rank = [work.to_device(loaded, CPU) for loaded in ranks.allgather(work.load_batch(batch))]
    if not config.sync_batch_norm:
        return by_rank
    return [(torch.cat([inputs for inputs, _ in by_rank]), torch.cat([targets for _, targets in by_rank]))]


def train_reference(reference: nn.Module, config: TrainConfig, work: SuperResolution, ranks: Ranks) -> None:
    """Run the steps, computed from the formulas."""
    rate = 0.01 * (ranks.size * config.batches_per_allreduce if config.scale_learning_rate else 1)
    momentum = [torch.zeros_like(parameter) for parameter in reference.parameters()]
    for step in range(config.steps or 0):
        found = [
            torch.autograd.grad(FP32.loss(reference, *part, work.loss), list(reference.parameters()))
            for batch in range(step * config.batches_per_allreduce, (step + 1) * config.batches_per_allreduce)
            for part in batches_of_ranks(batch, config, work, ranks)
        ]
        if config.use_adasum:
            combined = [adasum(*pair) for pair in zip(*found, strict=True)]
        else:
            combined = [torch.stack(parts).mean(0) for parts in zip(*found, strict=True)]
        norm = torch.cat([gradient.flatten() for gradient in combined]).norm()
        if config.clip_norm is not None and norm > config.clip_norm:
            combined = [gradient * config.clip_norm / norm for gradient in combined]
        with torch.no_grad():
            for velocity, parameter, gradient in zip(momentum, reference.parameters(), combined, strict=True):
                velocity.mul_(0.9).add_(gradient)
                parameter.sub_(rate * velocity)


def let_numbers_differ(ranks: Ranks) -> None:
    """Let rank 1 number its messages without a name differently, as a rank that joined later."""
    assert ranks.hvd is not None
    values = torch.zeros(1)
    if ranks.rank == 0:
        ranks.hvd.allreduce(values, name="tried twice")
    handle = ranks.hvd.allreduce_async(values, name="first")
    if ranks.rank == 1:  # rank 0 has not sent this name yet, so that it is in use
        with suppress(RuntimeError, ValueError):  # a number is used up all the same
            ranks.hvd.allreduce_async(values, name="first")
            raise AssertionError("Horovod took a name twice")
        ranks.hvd.allreduce(values, name="tried twice")
    ranks.hvd.synchronize(handle)


def compare(config: TrainConfig, ranks: Ranks) -> dict[str, Any]:
    work = SuperResolution(config, ranks)
    torch.manual_seed(0)
    model, reference = work.build_model(), work.build_model()
    reference.load_state_dict(model.state_dict())
    train_reference(reference, config, work, ranks)
    if config.sync_batch_norm:
        let_numbers_differ(ranks)
        synchronise_batch_norm(model, ranks.hvd)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    Trainer(config, ranks, model, work, FP32).run()
    compared = dict(model.named_parameters()) | (dict(model.named_buffers()) if config.sync_batch_norm else {})
    expected = reference.state_dict()
    difference = max(
        float(((value - expected[name]).abs() / expected[name].abs().clamp(min=1)).max())
        for name, value in compared.items()
    )
    change = max(float((value - start[name]).abs().max()) for name, value in model.named_parameters())
    everyone = ranks.allgather(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    return {"difference": difference, "change": change, "equal": torch.equal(*everyone)}


sys.path.insert(0, str(Path(__file__).parent))
ranks = Ranks()
for options in json.loads(sys.argv[1]):
    config = TrainConfig.of(
        model="small_net:net", batch_size=2, patch_size=8, optimizer="sgd", data=sys.argv[2], **options
    )
    found = compare(config, ranks)
    if ranks.rank == 0:
        print(json.dumps(found), flush=True)
