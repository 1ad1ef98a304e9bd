"""Logs to Weights & Biases with its own client.

All its files are in the run folder; `wandb sync` can upload them from there.
"""

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
from hvscale.trainer.loggers.logger import FINISH_SECONDS, LOGGERS, FinalResult, LoggedRun, Metrics

FOLDER = "wandb"  # in the run folder; the client chooses this name
PROJECT = "hvscale"
CONNECT_SECONDS = "30"
LONGEST_NAME = 128  # of an artifact; the client refuses more


@LOGGERS.registering("wandb")
class Wandb:
    name = package = "wandb"

    @staticmethod
    def requested(config: TrainConfig) -> bool:
        return config.wandb != "off"

    def __init__(self, logged: LoggedRun, warn: Callable[[str], None]) -> None:
        """Logs offline, with a warning, if the server is unreachable or rejects the user."""
        self.run_folder = logged.run
        os.environ.setdefault("WANDB_DATA_DIR", str(logged.path / FOLDER))
        os.environ.setdefault("WANDB_CACHE_DIR", str(logged.path))  # the client appends its folder name
        os.environ.setdefault("WANDB_INIT_TIMEOUT", CONNECT_SECONDS)
        mode = logged.config.wandb
        try:
            self.run = start(logged, mode)
        except Exception as error:
            if mode == "offline":
                raise
            self.run = start(logged, "offline")
            warn(f"logs offline ({first_line(error)}): `wandb sync {self.run.settings.sync_dir}` uploads it later")

    def step(self, number: int, metrics: Metrics) -> None:
        self.run.log(metrics, step=number)

    def end(self, result: FinalResult) -> None:
        """Raises TimeoutError if not everything could be uploaded in time."""
        import wandb

        last: dict[str, Any] = dict(result.metrics)
        if result.picture is not None:
            last["picture"] = wandb.Image(str(result.picture))
        if result.breakdown is not None:
            rows = [[getattr(row, column) for column in Row.model_fields] for row in result.breakdown.rows]
            last["message_sizes"] = wandb.Table(columns=[*Row.model_fields], data=rows)
        if last:
            self.run.log(last, step=result.step)
        if result.finished:
            self.run.log_artifact(artifact(self.run_folder))
        try:
            self.run.finish(exit_code=0 if result.finished else 1)
        except TimeoutError as error:
            raise TimeoutError(f"not everything was uploaded; run `wandb sync {self.run.settings.sync_dir}`") from error


def start(logged: LoggedRun, mode: str) -> Any:
    """Start a wandb run. Raises what the client raises."""
    import wandb

    return wandb.init(
        project=logged.config.wandb_project or os.environ.get("WANDB_PROJECT", PROJECT),
        mode=mode,  # type: ignore[arg-type]
        dir=logged.path,
        name=logged.path.name,
        group=logged.path.name,  # a resumed run becomes another run in the same group
        config={**logged.config.model_dump(mode="json"), "np": logged.np},
        settings=wandb.Settings(
            silent=True,
            console="off",
            finish_timeout=FINISH_SECONDS - 10,  # leaves time to report a timeout
            finish_timeout_raises=True,
        ),
    )


def artifact(run: RunFolder) -> Any:
    """The run folder as an artifact.

    It omits the client's files and the checkpoints, which are several times as large as the model.
    """
    import wandb

    found = wandb.Artifact(re.sub(r"[^A-Za-z0-9_.-]+", "-", run.path.name)[:LONGEST_NAME], type="run")
    left_out = {run.path / FOLDER, run.hvprof}
    for path in sorted(run.path.rglob("*")):
        if path.is_file() and path.suffix != ".ckpt" and left_out.isdisjoint(path.parents):
            # Files may change until the launcher has ended, except the model, which is large.
            policy: Literal["mutable", "immutable"] = "immutable" if path.suffix == ".pt" else "mutable"
            found.add_file(str(path), str(path.relative_to(run.path)), skip_cache=True, policy=policy)
    if profiles := [path for path in run.hvprof.glob("[!.]*") if path.is_file()]:
        # The ranks still map their files at full length, so copies are trimmed instead.
        with tempfile.TemporaryDirectory(dir=run.path / FOLDER) as folder:
            staged = RunFolder(Path(folder))
            staged.hvprof.mkdir()
            for path in profiles:
                shutil.copy(path, staged.hvprof)
            profiling.trim_profiles(staged)
            for path in sorted(staged.hvprof.iterdir()):
                found.add_file(str(path), f"hvprof/{path.name}", skip_cache=True)
    return found


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
