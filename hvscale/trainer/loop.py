"""Train a model on all ranks: the whole way from a configuration to a measured model in a run folder."""

import math
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hvscale import profiling
from hvscale.errors import EXIT_DONE, RequestError, SavedError
from hvscale.run_folder import RunFolder, cannot_write, write_atomically
from hvscale.trainer import budget, precision, threads
from hvscale.trainer.checkpoints import Checkpoint, Folder
from hvscale.trainer.compiling import compile_blocks
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.data.prefetch import Prefetch
from hvscale.trainer.epoch_loss import EpochLoss
from hvscale.trainer.optimizer import make_optimizer, share_state
from hvscale.trainer.precision import Arithmetic
from hvscale.trainer.progress import reporter, say
from hvscale.trainer.random_state import random_state, restore_random_state, seed_rank
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.result import TrainResult
from hvscale.trainer.resume import checkpoint_folder, checkpoint_to_resume, say_what_differs, warn
from hvscale.trainer.run import training_run
from hvscale.trainer.schedule import learning_rate, scaling_factor
from hvscale.trainer.stall import StallWatch
from hvscale.trainer.steps import Step, StepsFile
from hvscale.trainer.stop_signals import noting_stop_signals
from hvscale.trainer.sync_batch_norm import synchronise_batch_norm
from hvscale.trainer.trials import Trials
from hvscale.trainer.update import Update
from hvscale.trainer.watch import Watch
from hvscale.trainer.workload import Workload, workload


def train(config: TrainConfig) -> TrainResult:
    """Train as `config` says, on the ranks a launcher started or alone; measure the model; fill the run folder.

    Leaves steps.jsonl, model.pt (a state dict), result.json, checkpoints and for super-resolution picture.png there,
    written by rank 0; every rank returns the result. Raises RequestError when what was asked for is wrong, and
    RankFailedError when another rank ended during training: on rank 0, which is to print it, while the other ranks leave
    by SystemExit with the same status; likewise SavedError when a rank was asked to stop.
    """
    ranks = Ranks()
    own_threads = threads.share_cores(ranks, config.threads, config.pin)
    device = ranks.device()
    torch.manual_seed(config.seed)
    work = workload(config, ranks)
    model = ranks.together(work.build).to(device)
    seed_rank(config.seed, ranks.rank)
    first_batch = ranks.together(lambda: work.batch(work.load(0), device))
    resumed = checkpoint_to_resume(config, ranks)

    with (
        Watch(config, ranks) as watch,
        training_run(config, ranks, continued=config.resume is not None) as run,
        ranks.ending_together(),
    ):
        if ranks.rank == 0:
            say(f"{work.title} on {device}, np {ranks.size}, threads per rank {own_threads}")
            say(f"run folder {run.path}")
        before = Arithmetic(**resumed.arithmetic) if resumed is not None else None
        if before is not None and before in precision.candidates(config):
            arithmetic = before  # not what happens to measure faster today: going on is to change nothing
        else:
            arithmetic = precision.choose(config, ranks, model, work.loss, *first_batch)
        if resumed is not None and ranks.rank == 0:
            say(
                f"going on after step {resumed.step} with {arithmetic}"
                + (f", before {before}" * (before != arithmetic))
            )
            say_what_differs(config, resumed, ranks)
        if config.sync_batch_norm:
            synchronise_batch_norm(model, ranks.hvd)
        if config.compile:
            ranks.together(lambda: compile_blocks(model))
        trials = Trials(ranks, model)
        durations = fit(config, ranks, model, work, arithmetic, run, resumed, watch, trials)
        if trials.active:
            raise SystemExit(EXIT_DONE)  # a search has measured it, and wants no model
        speeds = ranks.gather(
            budget.images_per_second(config.batch_size * config.batches_per_allreduce, durations) if durations else 0.0
        )
        result = TrainResult(
            model=config.model,
            model_options=work.model_options,
            np=ranks.size,
            images_per_second=sum(speeds),
            images_per_second_by_rank=speeds,
            steps=(resumed.step if resumed else 0) + len(durations),
            seconds=sum(durations),
            precision=arithmetic.precision,
            memory_format="channels-last" if arithmetic.channels_last else "contiguous",
            threads_per_rank=own_threads,
            run=run.path,
            model_file=run.path / "model.pt",
            **work.measure(model, run),
        )
        ranks.together(lambda: write(result, model) if ranks.rank == 0 else None)
        return ranks.gather(result)[0]


def write(result: TrainResult, model: nn.Module) -> None:
    """model.pt and result.json, and the result for a person. Raises RequestError when the disk is full."""
    document = result.model_dump_json(by_alias=True, indent=2) + "\n"
    try:
        write_atomically(result.model_file, lambda stream: torch.save(model.state_dict(), stream))
        write_atomically(result.run / "result.json", lambda stream: stream.write(document.encode()))
    except OSError as error:
        raise cannot_write(result.run, error) from error
    say(result.summary())
    say(f"model {result.model_file}" + (f", picture {result.picture}" if result.picture else ""))


def fit(
    config: TrainConfig,
    ranks: Ranks,
    model: nn.Module,
    work: Workload,
    arithmetic: Arithmetic,
    run: RunFolder,
    resumed: Checkpoint | None = None,
    watch: Watch | None = None,
    trials: Trials | None = None,
) -> list[float]:
    """The training loop, from the start or from after a checkpoint's step. Returns the seconds that each step took on this rank.

    With `trials` that are active it goes on until they end it.

    Raises SavedError, on all ranks, when one of them was asked to stop, and RequestError when no finite loss comes any more.
    """
    device = next(model.parameters()).device
    optimizer = ranks.together(lambda: make_optimizer(config, work, model, ranks.hvd))
    made = 0
    passes = config.batches_per_allreduce
    steps_per_epoch = max(1, work.steps_per_epoch // passes)
    steps = config.steps or (config.epochs * steps_per_epoch if config.epochs else None)
    if resumed is not None:
        made, steps = resumed.step, steps or resumed.steps
        if ranks.rank == 0:  # the other ranks are sent what it has
            model.load_state_dict(resumed.model)
            optimizer.load_state_dict(resumed.optimizer)
        if ranks.rank < len(resumed.random):
            restore_random_state(resumed.random[ranks.rank], device)
    share_state(model, optimizer, ranks.hvd)

    folder = checkpoint_folder(config, run)
    rates = learning_rate(config, work.learning_rate, steps_per_epoch, scaling_factor(config, ranks.hvd))
    workers = config.workers if config.workers is not None else torch.get_num_threads() if work.prepares_ahead else 0
    durations: list[float] = []
    after = made if config.resume is not None else None
    update, epoch_loss = Update(config, ranks, model, optimizer, arithmetic), EpochLoss(device)
    if resumed is not None and resumed.scaler:
        update.scaler.load_state_dict(resumed.scaler)
    skipped = 0  # in a row
    steps_file = ranks.together(lambda: StepsFile(run.steps, after) if ranks.rank == 0 else None)
    if watch is not None:
        watch.begin(run)
    with (
        steps_file or nullcontext(),
        reporter(work.decimals) if ranks.rank == 0 else nullcontext() as report,
        Prefetch(work.load, workers) as batches,
        noting_stop_signals() as asked_to_stop,
        StallWatch(config.stall_timeout) as stall,
    ):
        end = time.perf_counter()
        measured = trials is not None and trials.active
        while measured or steps is None or made < steps:
            profiling.step()
            step, start = made, end
            rate = rates.at(step, steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            update.before()
            loss, data_wait = torch.zeros((), device=device), 0.0
            for batch in range(step * passes, (step + 1) * passes):
                waiting = time.perf_counter()
                inputs, targets = work.batch(batches.get(batch), device)
                data_wait += time.perf_counter() - waiting
                part = arithmetic.loss(model, inputs, targets, work.loss) / passes
                update.backward(part)
                loss += part.detach()
            ordered = trials is not None and trials.waiting() is not None
            updated = update.after(loss, bool(asked_to_stop) or ordered)
            own_loss = loss.item()
            end = time.perf_counter()
            stall.moved()
            durations.append(end - start)
            made += 1
            if steps is None and config.seconds is not None:
                more = budget.agreed_steps(config.seconds, durations, ranks)
                steps = more and made - len(durations) + more
            if not updated.skipped:
                epoch_loss.add(loss)
            mean = epoch_loss.end(ranks) if made % steps_per_epoch == 0 else None
            if mean is not None and ranks.rank == 0:
                say(f"epoch {made // steps_per_epoch}: mean loss {mean:.{work.decimals}f}")
            if steps_file is not None and report is not None:
                done = Step(
                    step=made,
                    steps=steps,
                    images=config.batch_size * passes * ranks.size,
                    seconds=end - start,
                    loss=own_loss if math.isfinite(own_loss) else None,
                    learning_rate=rate,
                    data_wait_seconds=data_wait,
                    communication_seconds=updated.communication_seconds,
                    epoch_loss=mean,
                    skipped=updated.skipped,
                )
                steps_file.write(done)
                report.show(done)
            skipped = skipped + 1 if updated.skipped and not updated.overflowed else 0
            if skipped:
                mind_skipped(skipped, update.most_skipped, made, own_loss, folder, ranks)
            if trials is not None and measured and updated.stop:
                if not trials.obey(made):
                    break
                end = time.perf_counter()
                stall.moved()
                continue
            stopping = updated.stop and made != steps
            if stopping or (config.checkpoint_every and (made % config.checkpoint_every == 0 or made == steps)):
                file = save(
                    folder, config, ranks, model, work.model_options, optimizer, update.scaler, arithmetic, made, steps
                )
                end = time.perf_counter()
                stall.moved()
                if stopping:
                    ranks.fail(
                        SavedError(
                            f"asked to stop: saved {file} after step {made}; the same with --resume {file} goes on"
                        )
                    )
    return durations


def mind_skipped(skipped: int, most: int, made: int, loss: float, folder: Folder, ranks: Ranks) -> None:
    """Say that a step was skipped; the last of `most` in a row ends training. Raises RequestError, on all ranks."""
    if skipped < most:
        if ranks.rank == 0:
            warn(f"step {made} is skipped: the loss or a gradient is not finite (here the loss is {loss})")
        return
    last = next(iter(folder.files()), None)
    ranks.fail(
        RequestError(
            f"the loss or a gradient is not finite in {skipped} steps in a row, up to step {made}: lower --learning-rate"
            + (f"; the last good checkpoint is {last}" if last else "; there is no checkpoint yet")
        )
    )


def save(
    folder: Folder,
    config: TrainConfig,
    ranks: Ranks,
    model: nn.Module,
    model_options: dict[str, Any],
    optimizer: Any,
    scaler: torch.amp.GradScaler,
    arithmetic: Arithmetic,
    made: int,
    steps: int | None,
) -> Path | None:
    """Collective: every rank's random numbers go into the one file that rank 0 writes, and whose path it gets."""
    random = ranks.gather(random_state(next(model.parameters()).device))

    def write() -> Path | None:
        if ranks.rank != 0:
            return None
        return folder.save(
            Checkpoint(
                step=made,
                steps=steps,
                model=model.state_dict(),
                model_options=model_options,
                optimizer=optimizer.state_dict(),
                scaler=scaler.state_dict(),
                random=random,
                arithmetic=asdict(arithmetic),
                config=config.model_dump(mode="json"),
            )
        )

    return ranks.together(write)
