"""`hvscale train`."""

from typing import Any

from hvscale.cli.app import new_app
from hvscale.cli.config_options import options_of
from hvscale.trainer.config import TrainConfig

app = new_app()


@app.command()
@options_of(TrainConfig, argument="model")
def train(**options: Any) -> None:
    """Train a model: alone, under `hvscale launch`, or under plain horovodrun, mpirun or srun.

    Example: `hvscale launch -np 2 -- hvscale train edsr-baseline --scale 2 --seconds 60`
    """
    from hvscale import trainer

    trainer.train(TrainConfig.of(**options))
