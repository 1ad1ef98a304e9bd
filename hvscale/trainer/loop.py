"""Train a model on all ranks: the whole way from a configuration to a measured model in a run folder."""

import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from hvscale import models
from hvscale.run_folder import RunFolder, cannot_write, write_atomically
from hvscale.trainer import budget, precision, resize, threads
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.crops import Crops
from hvscale.trainer.metrics import psnr_db, quantise
from hvscale.trainer.photos import Photo, Pixels, load_photos
from hvscale.trainer.picture import side_by_side
from hvscale.trainer.progress import reporter, say
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.result import TrainResult
from hvscale.trainer.run import training_run
from hvscale.trainer.schedule import learning_rate
from hvscale.trainer.steps import Step, StepsFile


def train(config: TrainConfig) -> TrainResult:
    """Train as `config` says, on the ranks a launcher started or alone; measure the held-out photo; fill the run folder.

    Leaves steps.jsonl, model.pt (a state dict), picture.png and result.json there, written by rank 0; every rank gets
    the result. Raises RequestError when what was asked for is wrong: on rank 0, while the other ranks end silently with
    the same exit status.
    """
    ranks = Ranks()
    own_threads = threads.share_cores(ranks, config.threads)
    device = ranks.device()
    torch.manual_seed(config.seed)
    model = ranks.together(lambda: models.build(config.model, **config.model_options())).to(device)
    # The shaved border of the held-out photo has to leave something to measure.
    smallest = config.scale * max(config.patch_size, 16)
    photos, holdout = ranks.together(lambda: load_photos(config.photos, config.holdout, smallest))
    crops = Crops(photos, config.scale, config.patch_size, config.seed)
    ranks.together(lambda: crops.draw(0, ranks.rank, ranks.size, config.batch_size))

    with training_run(config, ranks) as run:
        tell = say if ranks.rank == 0 else lambda line: None
        tell(
            f"{config.model} x{config.scale} on {ranks.size} ranks of {own_threads} threads, {device}; run folder {run.path}"
        )
        arithmetic = precision.choose(config, ranks, model, *batch(crops, config, ranks, 0, device), tell)
        durations = fit(config, ranks, model, crops, arithmetic, run)
        speed = budget.images_per_second(config.batch_size, durations)
        by_rank = ranks.gather(speed)

        def finish() -> TrainResult | None:
            if ranks.rank != 0:
                return None
            ours, bicubic = measure(model, holdout, config.scale, run)
            result = TrainResult(
                model=config.model,
                np=ranks.size,
                holdout=holdout.name,
                psnr_db=ours,
                bicubic_psnr_db=bicubic,
                images_per_second=sum(by_rank),
                images_per_second_by_rank=by_rank,
                steps=len(durations),
                seconds=sum(durations),
                precision="bf16" if arithmetic.bf16 else "fp32",
                memory_format="channels-last" if arithmetic.channels_last else "contiguous",
                threads_per_rank=own_threads,
                run=run.path,
                model_file=run.path / "model.pt",
                picture=run.path / "picture.png",
            )
            save(run.path / "result.json", (result.model_dump_json(by_alias=True, indent=2) + "\n").encode())
            return result

        result = next(r for r in ranks.gather(ranks.together(finish)) if r is not None)
        tell(
            f"{holdout.name}: {result.psnr_db:.2f} dB, bicubic {result.bicubic_psnr_db:.2f} dB; "
            f"{result.images_per_second:.1f} images/s in all, by rank {', '.join(f'{s:.1f}' for s in by_rank)}"
        )
        tell(f"picture {result.picture}, model {result.model_file}")
        return result


def batch(crops: Crops, config: TrainConfig, ranks: Ranks, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """This rank's low- and high-resolution patches of a step, as floats 0..255."""
    lr, hr = crops.cut(crops.draw(step, ranks.rank, ranks.size, config.batch_size))
    return torch.from_numpy(lr).to(device).float(), torch.from_numpy(hr).to(device).float()


def fit(
    config: TrainConfig, ranks: Ranks, model: nn.Module, crops: Crops, arithmetic: precision.Arithmetic, run: RunFolder
) -> list[float]:
    """The training loop. Returns the seconds that each step took on this rank."""
    device = next(model.parameters()).device
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    # Betas and epsilon of the public EDSR implementation, which are Adam's own defaults.
    optimizer: torch.optim.Optimizer = torch.optim.Adam([p for _, p in trainable])
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
                images = config.batch_size * ranks.size
                done = Step(step + 1, steps, images, end - start, own_loss, rate, data_wait, communication)
                steps_file.write(done)
                report.show(done)
    return durations


def measure(model: nn.Module, holdout: Photo, scale: int, run: RunFolder) -> tuple[float, float]:
    """PSNR of the model and of bicubic on the held-out photo, in dB; saves the weights and the picture."""
    hr = resize.crop_to_multiple(holdout.pixels, scale)
    lr = resize.shrink(hr, scale)
    bicubic = resize.enlarge(lr, scale)
    ours = super_resolve(model, lr)
    ours_db, bicubic_db = psnr_db(ours, hr, scale), psnr_db(bicubic, hr, scale)
    try:
        write_atomically(run.path / "model.pt", lambda stream: torch.save(model.state_dict(), stream))
        picture = side_by_side(lr, bicubic, ours, hr, scale, bicubic_db, ours_db)
        write_atomically(run.path / "picture.png", lambda stream: picture.save(stream, "PNG"))
    except OSError as error:
        raise cannot_write(run.path, error) from error
    return ours_db, bicubic_db


def super_resolve(model: nn.Module, lr: Pixels) -> Pixels:
    """(height, width, 3) to the model's scale times that, computed in fp32 whatever the training's precision."""
    image = torch.from_numpy(lr.copy()).permute(2, 0, 1)[None].float()
    with torch.inference_mode():
        return quantise(model(image.to(next(model.parameters()).device)))


def save(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, lambda stream: stream.write(content))
    except OSError as error:
        raise cannot_write(path.parent, error) from error
