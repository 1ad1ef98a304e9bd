"""The optimizer, under Horovod where there are other ranks."""

from types import ModuleType

import torch
from torch import nn

from hvscale.trainer.config import TrainConfig
from hvscale.trainer.workload import Workload

MOMENTUM = 0.9  # of SGD, as in Goyal et al. (2017)


def make_optimizer(
    config: TrainConfig, work: Workload, model: nn.Module, hvd: ModuleType | None
) -> torch.optim.Optimizer:
    """The learning rate is set before each step, by the schedule."""
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = [parameter for _, parameter in trainable]
    kind = work.optimizer if config.optimizer == "auto" else config.optimizer
    optimizer: torch.optim.Optimizer
    if kind == "adam":
        # Betas (0.9, 0.999) and epsilon 1e-8, Adam's own defaults, are the public EDSR implementation's too.
        optimizer = torch.optim.Adam(parameters, weight_decay=config.weight_decay)
    else:
        optimizer = torch.optim.SGD(parameters, momentum=MOMENTUM, weight_decay=config.weight_decay)
    if hvd is not None:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=trainable)
    return optimizer


def share_state(model: nn.Module, optimizer: torch.optim.Optimizer, hvd: ModuleType | None) -> None:
    """Give every rank what rank 0 has. Collective."""
    if hvd is not None:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        # After the optimizer's: where that has no state yet, Horovod makes a step to get one, which weight decay makes count.
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
