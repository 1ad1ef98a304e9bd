"""Train a model on all ranks: the whole way from a configuration to a measured model in a run folder."""

import math
import time
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from hvscale import models, profiling
from hvscale.errors import RequestError
from hvscale.run_folder import RunFolder, cannot_write, write_atomically
from hvscale.trainer import budget, precision, threads
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.crops import Crops
from hvscale.trainer.evaluation import evaluate
from hvscale.trainer.photos import load_photos
from hvscale.trainer.picture import side_by_side
from hvscale.trainer.precision import Arithmetic
from hvscale.trainer.progress import reporter, say
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.result import TrainResult
from hvscale.trainer.run import training_run
from hvscale.trainer.schedule import learning_rate
from hvscale.trainer.steps import Step, StepsFile

# Less than this of the held-out photo's low-resolution side, and its shaved border leaves nothing to measure.
SMALLEST_LR_SIDE = 16


def train(config: TrainConfig) -> TrainResult:
    """Train as `config` says, on the ranks a launcher started or alone; measure the held-out photo; fill the run folder.

    Leaves steps.jsonl, model.pt (a state dict), picture.png and result.json there, written by rank 0; every rank returns
    the result. Raises RequestError when what was asked for is wrong, and RankFailedError when another rank ended during
    training: on rank 0, which is to print it, while the other ranks leave by SystemExit with the same status.
    """
    ranks = Ranks()
    own_threads = threads.share_cores(ranks, config.threads)
    device = ranks.device()
    torch.manual_seed(config.seed)
    model = ranks.together(lambda: models.build(config.model, **config.model_options())).to(device)
    smallest = config.scale * max(config.patch_size, SMALLEST_LR_SIDE)
    photos, holdout = ranks.together(lambda: load_photos(config.photos, config.holdout, smallest))
    crops = Crops(photos, config.scale, config.patch_size, config.seed)
    first_batch = ranks.together(lambda: batch(crops, config, ranks, 0, device))

    with training_run(config, ranks) as run, ranks.ending_together():
        if ranks.rank == 0:
            say(f"{config.model} x{config.scale} on {device}, np {ranks.size}, threads per rank {own_threads}")
            say(f"run folder {run.path}")
        arithmetic = precision.choose(config, ranks, model, *first_batch)
        durations = fit(config, ranks, model, crops, arithmetic, run)
        speeds = ranks.gather(budget.images_per_second(config.batch_size, durations))

        def measure() -> TrainResult | None:
            if ranks.rank != 0:
                return None
            evaluation = evaluate(model, holdout.pixels, config.scale)
            result = TrainResult(
                model=config.model,
                np=ranks.size,
                holdout=holdout.name,
                psnr_db=evaluation.psnr_db,
                bicubic_psnr_db=evaluation.bicubic_psnr_db,
                images_per_second=sum(speeds),
                images_per_second_by_rank=speeds,
                steps=len(durations),
                seconds=sum(durations),
                precision="bf16" if arithmetic.bf16 else "fp32",
                memory_format="channels-last" if arithmetic.channels_last else "contiguous",
                threads_per_rank=own_threads,
                run=run.path,
                model_file=run.path / "model.pt",
                picture=run.path / "picture.png",
            )
            document = result.model_dump_json(by_alias=True, indent=2) + "\n"
            try:
                write_atomically(result.model_file, lambda stream: torch.save(model.state_dict(), stream))
                write_atomically(result.picture, lambda stream: side_by_side(evaluation).save(stream, "PNG"))
                write_atomically(run.path / "result.json", lambda stream: stream.write(document.encode()))
            except OSError as error:
                raise cannot_write(run.path, error) from error
            say(result.summary())
            say(f"model {result.model_file}, picture {result.picture}")
            return result

        return next(result for result in ranks.gather(ranks.together(measure)) if result is not None)


def batch(crops: Crops, config: TrainConfig, ranks: Ranks, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """This rank's low- and high-resolution patches of a step, as floats 0..255. Raises RequestError as Crops.draw does."""
    lr, hr = crops.cut(crops.draw(step, ranks.rank, ranks.size, config.batch_size))
    return torch.from_numpy(lr).to(device).float(), torch.from_numpy(hr).to(device).float()


def fit(
    config: TrainConfig, ranks: Ranks, model: nn.Module, crops: Crops, arithmetic: Arithmetic, run: RunFolder
) -> list[float]:
    """The training loop. Returns the seconds that each step took on this rank."""
    device = next(model.parameters()).device
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    # Betas (0.9, 0.999) and epsilon 1e-8, Adam's own defaults, are the public EDSR implementation's too.
    optimizer: torch.optim.Optimizer = torch.optim.Adam([parameter for _, parameter in trainable])
    hvd = ranks.hvd
    if hvd is not None:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=trainable)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    steps = config.steps
    durations: list[float] = []
    steps_file = ranks.together(lambda: StepsFile(run.steps) if ranks.rank == 0 else None)
    with steps_file or nullcontext(), reporter() if ranks.rank == 0 else nullcontext() as report:
        end = time.perf_counter()
        while steps is None or len(durations) < steps:
            profiling.step()
            step, start = len(durations), end
            lr, hr = batch(crops, config, ranks, step, device)
            data_wait = time.perf_counter() - start
            rate = learning_rate(config, step, steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            loss = arithmetic.loss(model, lr, hr)
            loss.backward()  # type: ignore[no-untyped-call]
            communication = None
            if hvd is None:
                optimizer.step()
            else:
                waiting = time.perf_counter()
                optimizer.synchronize()  # type: ignore[attr-defined]
                communication = time.perf_counter() - waiting
                with optimizer.skip_synchronize():  # type: ignore[attr-defined]
                    optimizer.step()
            own_loss = loss.item()
            end = time.perf_counter()
            durations.append(end - start)
            if steps is None and config.seconds is not None:
                steps = budget.agreed_steps(config.seconds, durations, ranks)
            if steps_file is not None and report is not None:
                if not math.isfinite(own_loss):
                    raise RequestError(f"the loss is {own_loss} at step {step + 1}: lower --learning-rate")
                images = config.batch_size * ranks.size
                done = Step(step + 1, steps, images, end - start, own_loss, rate, data_wait, communication)
                steps_file.write(done)
                report.show(done)
    return durations
