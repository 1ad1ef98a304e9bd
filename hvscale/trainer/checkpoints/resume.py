"""Which checkpoint a run goes on from."""

from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.trainer.checkpoints.store import FOLDER, Checkpoint, DamagedError, Folder, read
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.progress import say
from hvscale.trainer.ranks import Ranks

AUTO = "auto"
# What may differ without another result: where things lie, how long it lasts, how it is watched.
NO_DIFFERENCE = {
    *("run", "resume", "checkpoint_dir", "checkpoint_every", "checkpoint_keep", "commit_every", "stall_timeout"),
    *("wandb", "wandb_project", "tensorboard", "one_rank_run"),
    *(
        "steps",
        "epochs",
        "seconds",
        "threads",
        "pin",
        "workers",
        "cache_gb",
        "cache_dir",
        "precision",
        "memory_format",
        "compile",
    ),
}


def checkpoint_folder(config: TrainConfig, run: RunFolder) -> Folder:
    return Folder(config.checkpoint_dir or run.path / FOLDER, config.checkpoint_keep)


def checkpoint_to_resume(config: TrainConfig, ranks: Ranks) -> Checkpoint | None:
    """None when training begins. Read by rank 0, the others get it from there: they may have no access to its disk. Collective.

    Raises RequestError, on all ranks, for a file or folder without a checkpoint that is whole.
    """
    if config.resume is None:
        return None
    found = ranks.together(lambda: read_checkpoint(config) if ranks.rank == 0 else None)
    sent: Checkpoint | None = ranks.broadcast(without_tensors(found))
    return found if ranks.rank == 0 else sent


def without_tensors(found: Checkpoint | None) -> Checkpoint | None:
    """Model and optimizer are broadcast later as tensors."""
    return None if found is None else Checkpoint(**{**vars(found), "model": {}, "optimizer": {}})


def read_checkpoint(config: TrainConfig) -> Checkpoint | None:
    asked = str(config.resume)
    if asked == AUTO:
        place = config.checkpoint_dir or (config.run / FOLDER if config.run is not None else None)
        if place is None:
            raise RequestError("--resume auto looks into --run or --checkpoint-dir: give one of them")
        found = Folder(place, config.checkpoint_keep).newest(warn)
        return found[1] if found is not None else None
    path = Path(asked)
    if path.is_dir():
        folder = path / FOLDER if (path / FOLDER).is_dir() else path
        found = Folder(folder, config.checkpoint_keep).newest(warn)
        if found is None:
            raise RequestError(f"--resume {asked}: no checkpoints in it")
        return found[1]
    try:
        return read(path)
    except DamagedError as damage:
        raise RequestError(
            f"--resume {asked}: the checkpoint is damaged ({damage}). Give the one before it"
        ) from damage


def warn(text: str) -> None:
    say(f"hvscale: warning: {text}")


def say_what_differs(config: TrainConfig, resumed: Checkpoint, ranks: Ranks) -> None:
    """Aloud: another number of ranks, and options that are not those of the checkpoint."""
    if len(resumed.random) != ranks.size:
        warn(
            f"the checkpoint is of {len(resumed.random)} ranks and this run has {ranks.size}: "
            f"a step now takes {config.batch_size * config.batches_per_allreduce * ranks.size} images"
        )
    now = config.model_dump(mode="json")
    for name, before in resumed.config.items():
        if name not in NO_DIFFERENCE and name in now and now[name] != before:
            warn(f"--{name.replace('_', '-')} was {before} and is {now[name]}")
