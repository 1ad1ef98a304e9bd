"""All ranks of a job train with the same options: ranks with others would wait for each other without end, or train something else."""

from pathlib import Path
from typing import Any

from hvscale.core.errors import RequestError
from hvscale.trainer.config import BUNDLED, SYNTHETIC, TrainConfig, flag
from hvscale.trainer.ranks import Ranks

# What may differ: how a rank uses its own host, and what rank 0 alone reads.
OWN = {"threads", "pin", "workers", "cache_gb", "stall_timeout", "checkpoint_keep", "wandb_project"}
FOLDERS = {"data", "val_data"}  # may lie elsewhere on each host


def require_same_options(config: TrainConfig, ranks: Ranks) -> None:
    """Raises RequestError, on all ranks, when the options of one differ from those of rank 0. Collective."""
    if ranks.hvd is None:
        return
    own = compared(config)
    of_rank_0: dict[str, Any] = ranks.broadcast(own)

    def check() -> None:
        for name, value in own.items():
            if value != of_rank_0[name]:
                raise RequestError(
                    f"{flag(name)} is {value} on rank {ranks.rank} and {of_rank_0[name]} on rank 0: start all ranks with the same options"
                )

    ranks.together(check)


def compared(config: TrainConfig) -> dict[str, Any]:
    """The options that have to be the same on all ranks, by name. A path on a rank's own disk stands there only as one."""
    found = {name: value for name, value in vars(config).items() if name not in OWN}
    for name in FOLDERS:
        if found[name] not in (None, BUNDLED, SYNTHETIC):
            found[name] = "a folder"
    if found["resume"] is not None:
        found["resume"] = "a checkpoint"  # rank 0 alone reads it
    paths = [name for name, field in TrainConfig.model_fields.items() if field.annotation == Path | None]
    return {name: value for name, value in found.items() if name not in paths}
