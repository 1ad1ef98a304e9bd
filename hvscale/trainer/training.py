"""Runs one training job, from the configuration to an evaluated model in a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hvscale import models
from hvscale.core.documents import to_json
from hvscale.core.errors import EXIT_DONE, RequestError
from hvscale.core.run_folder import RunFolder, cannot_write, write_atomically, write_text
from hvscale.core.trial_protocol import TrialFolder
from hvscale.trainer.checkpoints.hook import PeriodicCheckpoints
from hvscale.trainer.checkpoints.resume import (
    checkpoint_folder,
    checkpoint_to_resume,
    locked_checkpoints,
    report_differences,
)
from hvscale.trainer.checkpoints.store import Checkpoint, CheckpointFolder, save_tensors, seed_rank
from hvscale.trainer.config import BUNDLED, SYNTHETIC, TrainConfig, flag
from hvscale.trainer.hooks.skipped_steps import SkippedSteps
from hvscale.trainer.hooks.step_log import StepLogHook
from hvscale.trainer.hooks.stop_signals import SaveAndStop, StopSignals
from hvscale.trainer.hooks.time_budget import TimeBudget, images_per_second
from hvscale.trainer.hooks.trials import TrialHook
from hvscale.trainer.loggers.hook import Loggers
from hvscale.trainer.optimizer import broadcast_buffers
from hvscale.trainer.progress import log_line
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.result import TrainResult
from hvscale.trainer.run import training_run
from hvscale.trainer.system import precision, resources
from hvscale.trainer.system.precision import ComputeFormat
from hvscale.trainer.system.step_watchdog import StepWatchdog
from hvscale.trainer.system.sync_batch_norm import synchronise_batch_norm
from hvscale.trainer.tasks.workload import Workload, make_workload
from hvscale.trainer.trainer import Hook, Trainer

if TYPE_CHECKING:
    from hvscale.trainer.elastic.commits import Commits

MODEL_FILE = "model.pt"


def train_on(config: TrainConfig, ranks: Ranks, commits: "Commits | None" = None) -> TrainResult:
    """Train as configured on these ranks, evaluate the model and write the run folder.

    An elastic job passes its `commits`; training continues from the newest one. Rank 0 writes
    steps.jsonl, model.pt (a state dict), result.json, checkpoints and, for super-resolution,
    picture.png. Every rank returns the result.

    Raises RequestError for an invalid request, RankFailedError if another rank ended, SavedError if
    a rank was asked to stop. Rank 0 raises these and prints them; other ranks raise SystemExit with
    the same status. In an elastic job raises RanksChangedError, on all ranks, if hosts were added
    or removed.
    """
    job = prepare(config, ranks, commits)
    with (
        Loggers(config, ranks) as loggers,
        locked_checkpoints(config, ranks, job.regrouped),
        training_run(config, ranks, job.reuses_run, job.regrouped) as run,
        ranks.end_if_a_rank_is_lost(),
    ):
        if commits is not None:
            commits.run = run.path
        job.print_header(run)
        compute_format = job.choose_compute_format()
        job.report_resume(compute_format)
        job.change_model()
        root = commits.root if commits is not None else 0
        trainer = Trainer(config, ranks, job.model, job.workload, compute_format, job.resumed, root)
        if commits is not None:
            commits.commit(trainer)  # a new rank has received the state only now
        trials = TrialFolder.of_this_rank()
        trainer.run(make_hooks(config, run, job.reuses_run, loggers.in_run(run.path), commits, trials))
        if trials is not None:
            raise SystemExit(EXIT_DONE)  # the search that measured this job needs no model
        # Each rank has its own statistics of batch normalisation: all evaluate what model.pt holds.
        broadcast_buffers(job.model, ranks.hvd)
        ranks.all_or_fail(lambda: write_model(run, job.model) if ranks.rank == 0 else None)
        result = make_result(trainer, run, job.threads)
        ranks.all_or_fail(lambda: write_result(result) if ranks.rank == 0 else None)
        return ranks.allgather(result)[0]


def make_hooks(
    config: TrainConfig,
    run: RunFolder,
    resumed: bool,
    loggers: Hook,
    commits: "Commits | None",
    trials: TrialFolder | None,
) -> list[Hook]:
    """The hooks of a job, in the order in which they run after a step."""
    checkpoints = checkpoint_folder(config, run)
    saves = config.checkpoint_every and trials is None  # a trial's checkpoints would replace the user's
    return [
        *([TimeBudget(config.seconds)] if config.seconds is not None else []),
        StepLogHook(run, resumed),
        loggers,
        StopSignals(),
        SkippedSteps(checkpoints),
        TrialHook(trials) if trials is not None else SaveAndStop(checkpoints),
        *([PeriodicCheckpoints(checkpoints, config.checkpoint_every)] if saves else []),
        *([commits] if commits is not None else []),
        *([StepWatchdog(config.stall_timeout)] if config.stall_timeout else []),
    ]


@dataclass
class PreparedJob:
    """Everything that is prepared before the run folder is created."""

    config: TrainConfig
    ranks: Ranks
    workload: Workload
    model: nn.Module
    device: torch.device
    threads: int
    """Number of computing threads of this rank."""
    first_batch: tuple[torch.Tensor, torch.Tensor]
    resumed: Checkpoint | None
    commits: "Commits | None"
    regrouped: bool
    """This elastic job has already created the run folder."""

    @property
    def reuses_run(self) -> bool:
        """Whether the run folder may already hold a training run."""
        return self.config.resume is not None or self.regrouped

    def print_header(self, run: RunFolder) -> None:
        if self.ranks.rank == 0:
            log_line(f"{self.workload.title} on {self.device}, np {self.ranks.size}, threads per rank {self.threads}")
            log_line(f"run folder {run.path}")

    def choose_compute_format(self) -> ComputeFormat:
        """The fastest, but on resume the previous one, so that the result does not change."""
        if self.resumed is not None:
            previous = ComputeFormat(**self.resumed.compute_format)
            if previous in precision.candidates(self.config):
                return previous
        return precision.choose(self.config, self.ranks, self.model, self.workload.loss, *self.first_batch)

    def report_resume(self, compute_format: ComputeFormat) -> None:
        if self.resumed is None or self.ranks.rank != 0:
            return
        previous = ComputeFormat(**self.resumed.compute_format)
        changed = f", previously {previous}" if previous != compute_format else ""
        log_line(f"resuming after step {self.resumed.step} with {compute_format}{changed}")
        if self.commits is not None and self.commits.newest is self.resumed:
            log_line(self.commits.describe_change(self.config, self.ranks))
        else:
            report_differences(self.config, self.resumed, self.ranks)

    def change_model(self) -> None:
        """Apply --sync-batch-norm and --compile."""
        if self.config.sync_batch_norm:
            synchronise_batch_norm(self.model, self.ranks.hvd)
        if self.config.compile:
            self.ranks.all_or_fail(lambda: precision.compile_blocks(self.model))


def prepare(config: TrainConfig, ranks: Ranks, commits: "Commits | None") -> PreparedJob:
    """Check the options, build the model, load the first batch and the checkpoint. Collective."""
    require_same_options(config, ranks)
    threads = resources.share_cores(ranks, config.threads, config.pin)
    device = ranks.device()
    torch.manual_seed(config.seed)
    workload = make_workload(config, ranks)
    model = ranks.all_or_fail(lambda: build_trainable(workload, config.model, ranks.hvd is not None)).to(device)
    seed_rank(config.seed, ranks.rank)
    first_batch = ranks.all_or_fail(lambda: workload.to_device(workload.load_batch(0), device))
    committed = commits.newest if commits is not None else None
    regrouped = commits is not None and commits.run is not None
    if not regrouped:
        ranks.all_or_fail(lambda: require_unused_checkpoints(config) if ranks.rank == 0 else None)
    return PreparedJob(
        config=config,
        ranks=ranks,
        workload=workload,
        model=model,
        device=device,
        threads=threads,
        first_batch=first_batch,
        resumed=committed or checkpoint_to_resume(config, ranks, workload, model),
        commits=commits,
        regrouped=regrouped,
    )


def require_unused_checkpoints(config: TrainConfig) -> None:
    """Raises RequestError if a training from scratch would save over another's checkpoints."""
    if config.resume is None and config.checkpoint_dir is not None and TrialFolder.of_this_rank() is None:
        CheckpointFolder(config.checkpoint_dir, config.checkpoint_keep).require_unused()


def build_trainable(workload: Workload, name: str, is_sent: bool) -> nn.Module:
    """The model, without channels-last weights. `is_sent`: Horovod sends its gradients.

    Raises RequestError as `build_model` does, and if the model has nothing to train, trains weights
    that are not float32 (Horovod, the loss scaler or the evaluation would not take them), whose
    gradients cannot be sent, or has an extra state that checkpoints cannot hold.
    """
    model = workload.build_model()
    models.check_extra_state(model, name)
    trainable = {key: value for key, value in model.named_parameters() if value.requires_grad}
    if not trainable:
        raise RequestError(f"{name}: none of its parameters requires a gradient, so there is nothing to train")
    for key, value in trainable.items():
        if value.dtype != torch.float32:
            found = str(value.dtype).removeprefix("torch.")
            raise RequestError(
                f"{name}: its parameter {key} is {found}, and training needs float32: remove its conversion. "
                "With --precision bf16 or fp16 the model computes in 16 bits"
            )
        if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last):
            value.data = value.data.contiguous()
        if is_sent and not value.is_contiguous():
            raise RequestError(f"{name}: Horovod cannot send its parameter {key}, a strided view: add .contiguous()")
    return model


def make_result(trainer: Trainer, run: RunFolder, threads: int) -> TrainResult:
    """The result of training, with the model evaluated. Collective."""
    config, compute_format, workload = trainer.config, trainer.compute_format, trainer.workload
    speeds = trainer.ranks.allgather(images_per_second(trainer.images_per_step, trainer.step_seconds))
    result = TrainResult(
        model=config.model,
        model_options=workload.model_options,
        np=trainer.ranks.size,
        images_per_second=sum(speeds),
        images_per_second_by_rank=speeds,
        steps=trainer.step,
        seconds=sum(trainer.step_seconds),
        precision=compute_format.precision,
        memory_format="channels-last" if compute_format.channels_last else "contiguous",
        threads_per_rank=threads,
        run=run.path,
        model_file=run.path / MODEL_FILE,
        **workload.evaluate(trainer.model, run),
    )
    return result if trainer.step_seconds else with_earlier_speed(result)


def with_earlier_speed(result: TrainResult) -> TrainResult:
    """The result with the speed in the run folder's result, if that is of the same training.

    A finished training that is resumed has no steps left to measure.
    """
    try:
        earlier = TrainResult.read(result.run)
    except RequestError:
        return result
    if (earlier.model, earlier.np, earlier.steps) != (result.model, result.np, result.steps):
        return result
    speed = ("images_per_second", "images_per_second_by_rank", "seconds")
    return result.model_copy(update={name: getattr(earlier, name) for name in speed})


def write_model(run: RunFolder, model: nn.Module) -> None:
    """Write model.pt, before the evaluation, which may fail.

    Raises RequestError if the disk is full.
    """
    try:
        write_atomically(run.path / MODEL_FILE, lambda stream: save_tensors(model.state_dict(), stream))
    except OSError as error:
        raise cannot_write(run.path, error) from error


def write_result(result: TrainResult) -> None:
    """Write result.json and print the summary. Raises RequestError if the disk is full."""
    try:
        write_text(result.run / "result.json", to_json(result) + "\n")
    except OSError as error:
        raise cannot_write(result.run, error) from error
    log_line(result.summary())
    log_line(f"model {result.model_file}" + (f", picture {result.picture}" if result.picture else ""))


# May differ between ranks: how a rank uses its host, and options that only rank 0 reads.
PER_RANK_OPTIONS = {"threads", "pin", "workers", "cache_gb", "stall_timeout", "checkpoint_keep", "wandb_project"}
FOLDER_OPTIONS = {"data", "val_data"}  # the folder may have another path on each host


def require_same_options(config: TrainConfig, ranks: Ranks) -> None:
    """Raises RequestError, on all ranks, if a rank's options differ from rank 0's. Collective.

    Otherwise the ranks would hang, or train different models.
    """
    if ranks.hvd is None:
        return
    own = shared_options(config)
    of_rank_0: dict[str, Any] = ranks.broadcast(own)

    def check() -> None:
        for name, value in own.items():
            if value != of_rank_0[name]:
                raise RequestError(
                    f"{flag(name)} is {value} on rank {ranks.rank} and {of_rank_0[name]} on rank 0: "
                    "start all ranks with the same options"
                )

    ranks.all_or_fail(check)


def shared_options(config: TrainConfig) -> dict[str, Any]:
    """The options that must be equal on all ranks, by name.

    Local paths are omitted or replaced by a generic text.
    """
    shared = {name: value for name, value in vars(config).items() if name not in PER_RANK_OPTIONS}
    for name in FOLDER_OPTIONS:
        if shared[name] not in (None, BUNDLED, SYNTHETIC):
            shared[name] = "a folder"
    if shared["resume"] is not None:
        shared["resume"] = "a checkpoint"  # only rank 0 reads it
    paths = [name for name, field in TrainConfig.model_fields.items() if field.annotation == Path | None]
    return {name: value for name, value in shared.items() if name not in paths}
