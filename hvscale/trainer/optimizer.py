"""The optimizer, distributed by Horovod if there are several ranks, and its learning rate."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.system.compiler_import import keep_uncompiled
from hvscale.trainer.tasks.workload import Workload

SGD_MOMENTUM = 0.9  # Goyal et al. (2017)
# Not Booleans, which masks have, nor bfloat16.
SENT_TYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)


def make_optimizer(
    config: TrainConfig, work: Workload, model: nn.Module, hvd: ModuleType | None
) -> torch.optim.Optimizer:
    """The optimizer. It averages gradients over the ranks unless --bf16-allreduce does so.

    The schedule sets the learning rate before each step. Raises RequestError for Adasum if the
    number of ranks is not a power of two.
    """
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = [parameter for _, parameter in trainable]
    kind = optimizer_name(config.optimizer, work)
    common: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    # The public EDSR code also uses Adam's defaults: betas (0.9, 0.999) and epsilon 1e-8.
    if kind != "adam":
        common["momentum"] = SGD_MOMENTUM
    of_torch = torch.optim.Adam if kind == "adam" else torch.optim.SGD
    optimizer = (of_torch if config.compile else without_compiler(of_torch))(parameters, **common)
    if hvd is None or config.bf16_allreduce:
        return optimizer
    if config.use_adasum and hvd.size() & (hvd.size() - 1):
        raise RequestError(f"--use-adasum needs 2, 4, 8 ... ranks, not {hvd.size()}")
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


def optimizer_name(option: str, work: Workload) -> str:
    """The optimizer that --optimizer `option` stands for: adam or sgd."""
    return work.optimizer if option == "auto" else option


def without_compiler(of_torch: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """The same optimizer, for a model that is not compiled: it does not import torch.compile."""
    for method in vars(torch.optim.Optimizer).values():
        keep_uncompiled(method)
    # torch's wrapper of `step` only switches gradients off and ends a compiled graph.
    return type(of_torch.__name__, (of_torch,), {"step": torch.no_grad()(inspect.unwrap(of_torch.step))})


def broadcast_state(model: nn.Module, optimizer: torch.optim.Optimizer, hvd: ModuleType | None, root: int = 0) -> None:
    """Broadcast the model and the optimizer state of rank `root`. Collective."""
    if hvd is not None:
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        # After the optimizer: if it has no state yet, Horovod runs a step to create it, which
        # changes parameters if there is weight decay.
        broadcast_entries(model, model.state_dict(), hvd, root)


def broadcast_buffers(model: nn.Module, hvd: ModuleType | None) -> None:
    """Broadcast rank 0's model without its parameters, which are equal on all ranks. Collective."""
    if hvd is not None:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        buffers = {key: value for key, value in model.state_dict().items() if key not in parameters}
        broadcast_entries(model, buffers, hvd, root=0)


def broadcast_entries(model: nn.Module, entries: dict[str, Any], hvd: ModuleType, root: int) -> None:
    """Broadcast these entries of the model's state dict. Collective."""
    # A tensor of an extra state is a copy: only the module itself can take what is received.
    others = {key: value for key, value in entries.items() if models.is_extra_state(key) or not can_send(value)}
    hvd.broadcast_parameters({key: value for key, value in entries.items() if key not in others}, root_rank=root)
    if others:  # Horovod pickles them
        received = hvd.broadcast_object(others, root, name="hvscale.buffers")
        model.load_state_dict({**model.state_dict(), **received})


def can_send(value: object) -> bool:
    """Whether Horovod broadcasts this entry of a state dict as it is."""
    return isinstance(value, Tensor) and value.dtype in SENT_TYPES and value.is_contiguous()


@dataclass(frozen=True)
class LearningRate:
    """The learning-rate schedule."""

    start: float
    """The rate from which the warm-up rises."""
    peak: float
    """The rate after the warm-up."""
    warmup_steps: int
    cosine: bool

    def at(self, step: int, steps: int | None) -> float:
        """The rate of `step`, counted from 0. `steps` is the total number, None if not known yet.

        It rises linearly during the warm-up. It is constant afterwards, or falls along half a
        cosine to zero after the last step (Loshchilov and Hutter, 2017, without restarts).
        """
        if step < self.warmup_steps:
            return self.start + (self.peak - self.start) * (step + 1) / self.warmup_steps
        if not self.cosine or steps is None:
            return self.peak
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        return self.peak * (1 + math.cos(math.pi * done)) / 2


def learning_rate(config: TrainConfig, default: float, steps_per_epoch: int, factor: float) -> LearningRate:
    """The schedule. `default` is the task's rate for one rank.

    With --scale-learning-rate the rate rises from that of one rank to `factor` times that rate
    (Goyal et al., 2017).
    """
    base = config.learning_rate or default
    warmup_steps = config.warmup_steps or round(config.warmup_epochs * steps_per_epoch)
    if not config.scale_learning_rate:
        return LearningRate(0.0, base, warmup_steps, config.schedule == "cosine")
    return LearningRate(base, base * factor, warmup_steps, config.schedule == "cosine")


def scaling_factor(config: TrainConfig, hvd: ModuleType | None) -> int:
    """The factor of --scale-learning-rate: the number of batches in one update.

    Adasum needs scaling only for the sum within a node, as in Horovod's examples.
    """
    if hvd is None:
        return config.batches_per_allreduce
    if not config.use_adasum:
        return int(config.batches_per_allreduce * hvd.size())
    return int(config.batches_per_allreduce * hvd.local_size()) if hvd.nccl_built() else 1
