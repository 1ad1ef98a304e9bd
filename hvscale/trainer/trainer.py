"""Train a model on all ranks: the whole way from a configuration to a measured model in a run folder."""

import math
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hvscale import profiling
from hvscale.core.documents import to_json
from hvscale.core.errors import EXIT_DONE, RequestError, SavedError
from hvscale.core.run_folder import RunFolder, cannot_write, write_atomically, write_text
from hvscale.trainer import budget
from hvscale.trainer.checkpoints.random_state import random_state, restore_random_state, seed_rank
from hvscale.trainer.checkpoints.resume import checkpoint_folder, checkpoint_to_resume, say_what_differs, warn
from hvscale.trainer.checkpoints.store import Checkpoint, Folder
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.data.prefetch import Prefetch
from hvscale.trainer.epoch_loss import EpochLoss
from hvscale.trainer.logger_start import Watch
from hvscale.trainer.optimizer import make_optimizer, share_state
from hvscale.trainer.progress import reporter, say
from hvscale.trainer.ranks import Ranks, RanksChangedError
from hvscale.trainer.result import TrainResult
from hvscale.trainer.run import training_run
from hvscale.trainer.same_options import require_same_options
from hvscale.trainer.schedule import learning_rate, scaling_factor
from hvscale.trainer.step import Update
from hvscale.trainer.steps import Step, StepsFile
from hvscale.trainer.system import memory, precision, threads
from hvscale.trainer.system.compiling import compile_blocks
from hvscale.trainer.system.precision import Arithmetic
from hvscale.trainer.system.step_watchdog import StallWatch
from hvscale.trainer.system.stop_signals import noting_stop_signals
from hvscale.trainer.system.sync_batch_norm import synchronise_batch_norm
from hvscale.trainer.tasks.workload import Workload, workload
from hvscale.trainer.trials import Trials

if TYPE_CHECKING:
    from hvscale.trainer.elastic.training import Commits


def train(config: TrainConfig) -> TrainResult:
    """As `train_on` says, on the ranks a launcher started, in an elastic job on those that there are at any time, or alone."""
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        from hvscale.trainer.elastic import training

        return training.train(config)
    return train_on(config, Ranks())


def train_on(config: TrainConfig, ranks: Ranks, commits: "Commits | None" = None) -> TrainResult:
    """Train as `config` says; measure the model; fill the run folder. With `commits`, go on from the last one.

    Leaves steps.jsonl, model.pt (a state dict), result.json, checkpoints and for super-resolution picture.png there,
    written by rank 0; every rank returns the result. Raises RequestError when what was asked for is wrong, and
    RankFailedError when another rank ended during training: on rank 0, which is to print it, while the other ranks leave
    by SystemExit with the same status; likewise SavedError when a rank was asked to stop. In an elastic job
    raises RanksChangedError, on all ranks, when hosts have come or gone.
    """
    memory.keep_freed_memory()
    require_same_options(config, ranks)
    own_threads = threads.share_cores(ranks, config.threads, config.pin)
    device = ranks.device()
    torch.manual_seed(config.seed)
    work = workload(config, ranks)
    model = ranks.together(work.build).to(device)
    seed_rank(config.seed, ranks.rank)
    first_batch = ranks.together(lambda: work.batch(work.load(0), device))
    committed = commits.newest if commits is not None else None
    resumed = committed or checkpoint_to_resume(config, ranks)
    gathered_anew = commits is not None and commits.run is not None
    continued = config.resume is not None or gathered_anew

    with (
        Watch(config, ranks) as watch,
        training_run(config, ranks, continued, gathered_anew) as run,
        ranks.ending_together(),
    ):
        if commits is not None:
            commits.run = run.path
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
            if commits is not None and committed is not None:
                say(commits.changes(config, ranks))
            else:
                say_what_differs(config, resumed, ranks)
        if config.sync_batch_norm:
            synchronise_batch_norm(model, ranks.hvd)
        if config.compile:
            ranks.together(lambda: compile_blocks(model))
        trials = Trials(ranks, model)
        durations = fit(config, ranks, model, work, arithmetic, run, resumed, continued, watch, commits, trials)
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
    try:
        write_atomically(result.model_file, lambda stream: torch.save(model.state_dict(), stream))
        write_text(result.run / "result.json", to_json(result) + "\n")
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
    continued: bool = False,
    watch: Watch | None = None,
    commits: "Commits | None" = None,
    trials: Trials | None = None,
) -> list[float]:
    """The training loop, from the start or from after a checkpoint's step. Returns the seconds that each step took on this rank.

    `continued`: the run's steps.jsonl may be there already. With `trials` that are active it goes on until they end it.
    Raises SavedError, on all ranks, when one of them was asked to stop, RequestError when no finite loss comes any more,
    and RanksChangedError after a commit when hosts have come or gone.
    """
    device = next(model.parameters()).device
    optimizer = ranks.together(lambda: make_optimizer(config, work, model, ranks.hvd))
    made = 0
    passes = config.batches_per_allreduce
    steps_per_epoch = max(1, work.steps_per_epoch // passes)
    shift = 0  # from a step's number to the one it would have, had there been this number of ranks from the start
    if resumed is not None:
        made = resumed.step
        shift = work.go_on(made * passes, resumed.place) // passes - made
        if resumed.model:  # the other ranks are sent what this one has
            model.load_state_dict(resumed.model)
            optimizer.load_state_dict(resumed.optimizer)
        if ranks.rank < len(resumed.random):
            restore_random_state(resumed.random[ranks.rank], device)
        elif commits is not None:
            seed_rank(config.seed, ranks.rank, made)
    steps = config.steps or (config.epochs * steps_per_epoch - shift if config.epochs else None)
    if resumed is not None:
        steps = steps or resumed.steps
    # A length in epochs is one of data: its schedule goes by the data, too, when a step takes another number of images.
    by_data = shift if config.epochs else 0
    share_state(model, optimizer, ranks.hvd, commits.root if commits is not None else 0)

    folder = checkpoint_folder(config, run)
    rates = learning_rate(config, work.learning_rate, steps_per_epoch, scaling_factor(config, ranks.hvd))
    workers = config.workers if config.workers is not None else torch.get_num_threads() if work.prepares_ahead else 0
    durations: list[float] = []
    after = made if continued else None
    update, epoch_loss = Update(config, ranks, model, optimizer, arithmetic), EpochLoss(device)
    if resumed is not None and resumed.scaler:
        update.scaler.load_state_dict(resumed.scaler)
    skipped = 0  # in a row

    def state(random: list[dict[str, Any]]) -> Checkpoint:
        return Checkpoint(
            step=made,
            steps=steps,
            model=model.state_dict(),
            model_options=work.model_options,
            optimizer=optimizer.state_dict(),
            scaler=update.scaler.state_dict(),
            random=random,
            arithmetic=asdict(arithmetic),
            config=config.model_dump(mode="json"),
            place=work.place(made * passes),
        )

    if commits is not None:
        commits.save(state([]), ranks)
    steps_file = ranks.together(lambda: StepsFile(run.steps, after, warn) if ranks.rank == 0 else None)
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
            rate = rates.at(step + by_data, steps + by_data if steps is not None else None)
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
            hosts_changed = None if commits is None else commits.hosts_changed
            updated = update.after(loss, bool(asked_to_stop) or ordered, hosts_changed)
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
            mean = epoch_loss.end(ranks) if (made + shift) % steps_per_epoch == 0 else None
            if mean is not None and ranks.rank == 0:
                say(f"epoch {(made + shift) // steps_per_epoch}: mean loss {mean:.{work.decimals}f}")
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
                if not trials.execute(made):
                    break
                end = time.perf_counter()
                stall.moved()
                continue
            stopping = updated.stop and made != steps
            if stopping or (config.checkpoint_every and (made % config.checkpoint_every == 0 or made == steps)):
                file = save(folder, ranks, device, state)
                end = time.perf_counter()
                stall.moved()
                if stopping:
                    ranks.fail(
                        SavedError(
                            f"asked to stop: saved {file} after step {made}; the same with --resume {file} goes on"
                        )
                    )
            if commits is not None and (updated.regroup or made % config.commit_every == 0 or made == steps):
                commits.save(state([]), ranks)
                if updated.regroup and made != steps:
                    raise RanksChangedError("hosts have come or gone")
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
    folder: Folder, ranks: Ranks, device: torch.device, state: Callable[[list[dict[str, Any]]], Checkpoint]
) -> Path | None:
    """Collective: every rank's random numbers go into the one file that rank 0 writes, and whose path it gets."""
    random = ranks.gather(random_state(device))
    return ranks.together(lambda: folder.save(state(random)) if ranks.rank == 0 else None)
