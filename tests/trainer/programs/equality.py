"""On each of two ranks: gradients averaged by Horovod are those of the joint batch, and parameters stay equal."""

import json
import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import Tensor, nn

from hvscale import models
from hvscale.run_folder import RunFolder
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.crops import Crops
from hvscale.trainer.loop import batch, fit
from hvscale.trainer.photos import load_photos
from hvscale.trainer.precision import Arithmetic
from hvscale.trainer.ranks import Ranks

ranks = Ranks()
cpu = torch.device("cpu")
fp32 = Arithmetic(bf16=False, channels_last=True)
config = TrainConfig.of(
    model="edsr-baseline", n_resblocks=1, n_feats=8, batch_size=2, patch_size=8, steps=5, photos=sys.argv[1]
)
photos, _ = load_photos(config.photos, None, 16)
crops = Crops(photos, config.scale, config.patch_size, config.seed)


def gradients(of: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in of.parameters() if parameter.grad is not None])


torch.manual_seed(0)
model = models.build(config.model, **config.model_options())
named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
optimizer = hvd.DistributedOptimizer(torch.optim.Adam([parameter for _, parameter in named]), named_parameters=named)
fp32.loss(model, *batch(crops, config, ranks, 3, cpu)).backward()  # type: ignore[no-untyped-call]
optimizer.synchronize()
averaged = gradients(model)

alone = models.build(config.model, **config.model_options())
alone.load_state_dict(model.state_dict())
lr, hr = crops.cut([crop for rank in range(2) for crop in crops.draw(3, rank, 2, config.batch_size)])
fp32.loss(alone, torch.from_numpy(lr).float(), torch.from_numpy(hr).float()).backward()  # type: ignore[no-untyped-call]
joint = gradients(alone)
furthest = float((averaged - joint).abs().max() / joint.abs().max())

# Each rank begins with other weights: the broadcast has to make them equal.
torch.manual_seed(10 + ranks.rank)
trained = models.build(config.model, **config.model_options())
run = RunFolder(Path(sys.argv[2]))
fit(config, ranks, trained, crops, fp32, run)
weights = torch.cat([parameter.flatten() for parameter in trained.parameters()])
first, second = ranks.gather(weights)
if ranks.rank == 0:
    print(json.dumps({"gradients_differ_by": furthest, "parameters_equal": torch.equal(first, second)}))
