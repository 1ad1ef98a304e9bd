"""On two ranks, averaged gradients equal those of the joint batch, and parameters stay equal."""

import json
import sys

import horovod.torch as hvd
import torch
from torch import Tensor, nn

from hvscale.trainer.config import TrainConfig
from hvscale.trainer.optimizer import without_compiler
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.precision import ComputeFormat
from hvscale.trainer.tasks.super_resolution import SuperResolution
from hvscale.trainer.trainer import Trainer

ranks = Ranks()
cpu = torch.device("cpu")
fp32 = ComputeFormat("fp32", channels_last=True)
config = TrainConfig.of(
    model="edsr-baseline", n_resblocks=1, n_feats=8, batch_size=2, patch_size=8, steps=5, data=sys.argv[1]
)
work = SuperResolution(config, ranks)


def gradients(module: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])


torch.manual_seed(0)
model = work.build_model()
named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
adam = without_compiler(torch.optim.Adam)([parameter for _, parameter in named])
optimizer = hvd.DistributedOptimizer(adam, named_parameters=named)
fp32.loss(model, *work.to_device(work.load_batch(3), cpu), work.loss).backward()  # type: ignore[no-untyped-call]
optimizer.synchronize()
averaged = gradients(model)

alone = work.build_model()
alone.load_state_dict(model.state_dict())
crops = [crop for rank in range(2) for crop in work.crops.draw(3, rank, 2, config.batch_size)]
low, high = (torch.from_numpy(patches).float() for patches in work.crops.cut(crops))
fp32.loss(alone, low, high, work.loss).backward()  # type: ignore[no-untyped-call]
joint = gradients(alone)
furthest = float((averaged - joint).abs().max() / joint.abs().max())


class Counter(torch.nn.Module):
    """Its extra state is one tensor, of another length on each rank."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def get_extra_state(self) -> torch.Tensor:
        return torch.ones(self.count)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.count = len(state)


# Each rank starts with different weights; the broadcast must make them equal.
torch.manual_seed(10 + ranks.rank)
trained = work.build_model()
trained.register_buffer("mask", torch.tensor([True, ranks.rank == 1]))  # Horovod sends no Booleans
trained.register_buffer("turned", torch.full((3, 2), float(ranks.rank)).t())
trained.counter = Counter(3 + ranks.rank)
Trainer(config, ranks, trained, work, fp32).run()
weights = torch.cat([parameter.flatten() for parameter in trained.parameters()])
first, second = ranks.allgather(weights)
counts = ranks.allgather(trained.counter.count)
buffers = ranks.allgather([trained.get_buffer(name).tolist() for name in ("mask", "turned")])
if ranks.rank == 0:
    print(
        json.dumps(
            {
                "gradients_differ_by": furthest,
                "parameters_equal": torch.equal(first, second),
                "buffers": buffers,
                "extra_states": counts,
            }
        )
    )
