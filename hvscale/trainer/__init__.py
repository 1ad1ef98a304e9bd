"""Trains a model on the ranks that a launcher started, or in a single process.

All code here runs inside a rank.
"""

import os
import signal

from hvscale.core.memory import keep_freed_memory, without_collections
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.demo import demo_config
from hvscale.trainer.result import TrainResult

__all__ = ["TrainConfig", "TrainResult", "demo_config", "train"]


def train(config: TrainConfig) -> TrainResult:
    """Train on the ranks that a launcher started; in an elastic job, on the ranks present.

    SIGUSR1, which asks a rank to save and stop, waits for the first step, and does not end the
    process after the last one. Raises as `hvscale.trainer.training.train_on` does.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    keep_freed_memory()
    # Imported here: torch takes seconds, and the command line needs only the configuration.
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        with without_collections():
            from hvscale.trainer.elastic.job import train_elastic

        return train_elastic(config)
    with without_collections():
        from hvscale.trainer.ranks import Ranks
        from hvscale.trainer.training import train_on

    return train_on(config, Ranks())
