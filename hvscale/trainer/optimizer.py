"""The optimizer, under Horovod where there are other ranks."""

from types import ModuleType
from typing import Any

import torch
from torch import nn

from hvscale.core.errors import RequestError
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.tasks.workload import Workload

MOMENTUM = 0.9  # of SGD, as in Goyal et al. (2017)


def make_optimizer(
    config: TrainConfig, work: Workload, model: nn.Module, hvd: ModuleType | None
) -> torch.optim.Optimizer:
    """It averages gradients, too, where there are other ranks, but for --bf16-allreduce. The learning rate is set before each step, by the schedule.

    Raises RequestError for Adasum on a number of ranks that it cannot have.
    """
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = [parameter for _, parameter in trainable]
    kind = work.optimizer if config.optimizer == "auto" else config.optimizer
    common: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    # Betas (0.9, 0.999) and epsilon 1e-8, Adam's own defaults, are the public EDSR implementation's too.
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, **common)
        if kind == "adam"
        else torch.optim.SGD(parameters, momentum=MOMENTUM, **common)
    )
    if hvd is None or config.bf16_allreduce:
        return optimizer
    if config.use_adasum and hvd.size() & (hvd.size() - 1):
        raise RequestError(f"--use-adasum needs 2, 4, 8 ... ranks, and there are {hvd.size()}")
    distributed: torch.optim.Optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=trainable,
        compression=hvd.Compression.fp16 if config.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=config.batches_per_allreduce,
        op=hvd.Adasum if config.use_adasum else hvd.Average,
        gradient_predivide_factor=config.gradient_predivide_factor,
        groups=config.allreduce_groups,
    )
    return distributed


def share_state(model: nn.Module, optimizer: torch.optim.Optimizer, hvd: ModuleType | None, root: int = 0) -> None:
    """Give every rank what rank `root` has. Collective."""
    if hvd is not None:
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        # After the optimizer's: where that has no state yet, Horovod makes a step to get one, which weight decay makes count.
        hvd.broadcast_parameters(model.state_dict(), root_rank=root)
