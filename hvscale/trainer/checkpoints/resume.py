"""Finds the checkpoint to resume from, and locks the folder of checkpoints."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from hvscale import models
from hvscale.core.errors import RequestError
from hvscale.core.files import is_folder
from hvscale.core.folder_lock import FolderInUseError, FolderLock
from hvscale.core.run_folder import RunFolder
from hvscale.core.trial_protocol import TrialFolder
from hvscale.trainer.checkpoints.store import (
    FOLDER,
    Checkpoint,
    CheckpointFolder,
    DamagedError,
    is_checkpoint,
    read,
)
from hvscale.trainer.config import TrainConfig, flag
from hvscale.trainer.optimizer import optimizer_name
from hvscale.trainer.progress import warn
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.tasks.workload import Workload

AUTO = "auto"
ENDING_SECONDS = 10.0  # that the rank 0 of a killed job may take to end
# Options that may differ without affecting the result: locations, length of training, logging.
NEUTRAL_OPTIONS = {
    *("run", "resume", "checkpoint_dir", "checkpoint_every", "checkpoint_keep", "commit_every", "stall_timeout"),
    *("wandb", "wandb_project", "tensorboard", "one_rank_run"),
    *("steps", "epochs", "seconds", "threads", "pin", "workers", "cache_gb", "cache_dir"),
    *("precision", "memory_format", "compile"),
}


def checkpoint_folder(config: TrainConfig, run: RunFolder) -> CheckpointFolder:
    return CheckpointFolder(config.checkpoint_dir or run.path / FOLDER, config.checkpoint_keep)


@contextmanager
def locked_checkpoints(config: TrainConfig, ranks: Ranks, regrouped: bool) -> Iterator[None]:
    """Context: no other training saves checkpoints to --checkpoint-dir. Collective.

    Each would remove those of the other. `regrouped`: this elastic job has used the folder before.
    Raises RequestError, on all ranks, if another process has locked it.
    """
    lock = ranks.all_or_fail(lambda: lock_checkpoints(config, regrouped) if ranks.rank == 0 else None)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def lock_checkpoints(config: TrainConfig, regrouped: bool) -> FolderLock | None:
    """The lock; None if there is no folder of its own to lock, or it cannot be locked."""
    folder, run = config.checkpoint_dir, config.run or os.environ.get("HVSCALE_RUN")
    if folder is None or TrialFolder.of_this_rank() is not None:
        return None
    if run is not None and folder.resolve() == Path(run).resolve():
        return None  # locked as the run folder
    try:
        return FolderLock(folder, "--checkpoint-dir", 0 if regrouped else ENDING_SECONDS)
    except FolderInUseError:
        if not regrouped:  # otherwise this job's previous rank 0 may hang and still hold the lock
            raise
    except (RequestError, OSError):  # another user's folder, which a group may share, or not writable
        pass
    return None


def checkpoint_to_resume(config: TrainConfig, ranks: Ranks, workload: Workload, model: nn.Module) -> Checkpoint | None:
    """The checkpoint of --resume; None if training starts from scratch. Collective.

    Only rank 0 reads it, because other ranks may not have access to its disk. They receive it
    without tensors. Raises RequestError, on all ranks, if there is no intact checkpoint, or if it
    does not fit the model or the optimizer.
    """
    if config.resume is None:
        return None

    def read_fitting() -> Checkpoint | None:
        found = read_checkpoint(config)
        if found is not None:
            require_fit(found, config, workload, model)
        return found

    found = ranks.all_or_fail(lambda: read_fitting() if ranks.rank == 0 else None)
    sent: Checkpoint | None = ranks.broadcast(without_tensors(found))
    return found if ranks.rank == 0 else sent


def require_fit(found: Checkpoint, config: TrainConfig, workload: Workload, model: nn.Module) -> None:
    """Load the checkpoint's tensors into `model`.

    Raises RequestError if they do not fit, or if they were trained with another optimizer.
    """
    models.load_state(model, found.model, f"--resume {config.resume}: the checkpoint")
    before, now = (optimizer_name(option, workload) for option in (found.config["optimizer"], config.optimizer))
    if before != now:
        raise RequestError(
            f"--resume {config.resume}: the checkpoint was trained with {before}: resume it with --optimizer {before}"
        )


def without_tensors(found: Checkpoint | None) -> Checkpoint | None:
    """A copy without the model and the optimizer, whose tensors are broadcast later."""
    return None if found is None else Checkpoint(**{**vars(found), "model": {}, "optimizer": {}})


def read_checkpoint(config: TrainConfig) -> Checkpoint | None:
    given = str(config.resume)
    if given == AUTO:
        return newest_of_run(config)
    path = Path(given)
    if is_folder(path):
        folder = path / FOLDER if (path / FOLDER).is_dir() else path
        found = CheckpointFolder(folder, config.checkpoint_keep).newest(warn)
        if found is None:
            raise RequestError(f"--resume {given}: the folder holds no checkpoints; name a run folder or a checkpoint")
        return found[1]
    try:
        return read(path)
    except DamagedError as damage:
        if not is_checkpoint(path):
            raise RequestError(f"--resume {given}: not a checkpoint; to start from weights, use --weights") from damage
        raise RequestError(f"--resume {given}: the checkpoint is damaged ({damage}); use the previous one") from damage


def newest_of_run(config: TrainConfig) -> Checkpoint | None:
    folder = config.checkpoint_dir or (config.run / FOLDER if config.run is not None else None)
    if folder is None:
        raise RequestError("--resume auto needs --run or --checkpoint-dir: name the folder to resume from")
    found = CheckpointFolder(folder, config.checkpoint_keep).newest(warn)
    return found[1] if found is not None else None


def report_differences(config: TrainConfig, resumed: Checkpoint, ranks: Ranks) -> None:
    """Warn if the number of ranks or options differ from those of the checkpoint."""
    if len(resumed.random) != ranks.size:
        warn(
            f"the checkpoint is of {len(resumed.random)} ranks and this run has {ranks.size}: "
            f"a step now takes {config.batch_size * config.batches_per_allreduce * ranks.size} images"
        )
    now = config.model_dump(mode="json")
    for name, before in resumed.config.items():
        if name not in NEUTRAL_OPTIONS and name in now and now[name] != before:
            warn(f"{flag(name)} was {before} and is now {now[name]}")
