"""Weights & Biases, by its own client. All it keeps lies in the run folder, from where `wandb sync` can send it."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from hvscale import profiling
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.breakdown import Row
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.loggers import FINISH_SECONDS, Figures, Outcome, Watched, register

FOLDER = "wandb"  # of a run; the client's own name for it
PROJECT = "hvscale"
CONNECT_SECONDS = 30.0


@register
class Wandb:
    name = package = "wandb"

    @staticmethod
    def asked_for(config: TrainConfig) -> bool:
        return config.wandb != "off"

    def __init__(self, watched: Watched, warn: Callable[[str], None]) -> None:
        """Logs offline, and says so, when the server cannot be reached or does not know the user."""
        self.run_folder = watched.run
        os.environ.setdefault("WANDB_DATA_DIR", str(watched.path / FOLDER))
        os.environ.setdefault("WANDB_CACHE_DIR", str(watched.path))  # to which the client adds its own folder's name
        mode = watched.config.wandb
        try:
            self.run = start(watched, mode)
        except Exception as error:
            if mode == "offline":
                raise
            self.run = start(watched, "offline")
            warn(f"logs offline ({first_line(error)}): `wandb sync {self.run.settings.sync_dir}` sends it later")

    def step(self, number: int, figures: Figures) -> None:
        self.run.log(figures, step=number)

    def end(self, outcome: Outcome) -> None:
        """Raises TimeoutError when not everything could be sent."""
        import wandb

        last: dict[str, Any] = dict(outcome.figures)
        if outcome.picture is not None:
            last["picture"] = wandb.Image(str(outcome.picture))
        if outcome.breakdown is not None:
            rows = [[getattr(row, column) for column in Row.model_fields] for row in outcome.breakdown.rows]
            last["message_sizes"] = wandb.Table(columns=[*Row.model_fields], data=rows)
        if last:
            self.run.log(last, step=outcome.step)
        if outcome.finished:
            self.run.log_artifact(artifact(self.run_folder))
        try:
            self.run.finish(exit_code=0 if outcome.finished else 1)
        except TimeoutError as error:
            raise TimeoutError(f"not everything was sent: `wandb sync {self.run.settings.sync_dir}` does") from error


def start(watched: Watched, mode: str) -> Any:
    """Raises what the client raises when it cannot begin."""
    import wandb

    return wandb.init(
        project=watched.config.wandb_project or os.environ.get("WANDB_PROJECT", PROJECT),
        mode=mode,  # type: ignore[arg-type]
        dir=watched.path,
        name=watched.path.name,
        group=watched.path.name,  # a run that goes on becomes another one of the same group
        config={**watched.config.model_dump(mode="json"), "np": watched.np},
        settings=wandb.Settings(
            silent=True,
            console="off",
            init_timeout=CONNECT_SECONDS,
            finish_timeout=FINISH_SECONDS - 10,  # so that it can still say that it was not enough
            finish_timeout_raises=True,
        ),
    )


def artifact(run: RunFolder) -> Any:
    """The run folder but for checkpoints, which take several times what the model does, and the client's own files."""
    import wandb

    found = wandb.Artifact(re.sub(r"[^A-Za-z0-9_.-]+", "-", run.path.name), type="run")
    left_out = {run.path / FOLDER, run.hvprof}
    for path in sorted(run.path.rglob("*")):
        if path.is_file() and path.suffix != ".ckpt" and left_out.isdisjoint(path.parents):
            # What is copied may change until the launcher has ended; the model does not, and is large.
            policy: Literal["mutable", "immutable"] = "immutable" if path.suffix == ".pt" else "mutable"
            found.add_file(str(path), str(path.relative_to(run.path)), skip_cache=True, policy=policy)
    if profiles := [path for path in run.hvprof.glob("[!.]*") if path.is_file()]:
        # The ranks still hold theirs at full length; a copy can be cut to what is used.
        with tempfile.TemporaryDirectory(dir=run.path / FOLDER) as folder:
            staged = RunFolder(Path(folder))
            staged.hvprof.mkdir()
            for path in profiles:
                shutil.copy(path, staged.hvprof)
            profiling.trim(staged)
            for path in sorted(staged.hvprof.iterdir()):
                found.add_file(str(path), f"hvprof/{path.name}", skip_cache=True)
    return found


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
