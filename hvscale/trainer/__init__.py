"""Trains a model on the ranks that a launcher started, or alone. Code here runs inside a rank."""

from hvscale.trainer.config import TrainConfig
from hvscale.trainer.demo import demo_config
from hvscale.trainer.result import TrainResult

__all__ = ["TrainConfig", "TrainResult", "demo_config", "train"]


def train(config: TrainConfig) -> TrainResult:
    """See `hvscale.trainer.trainer.train`."""
    # Imported when it is called, because torch takes seconds and a command line needs only the configuration.
    from hvscale.trainer import trainer

    return trainer.train(config)
