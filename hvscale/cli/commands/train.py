"""`hvscale train`."""

import typer

from hvscale.cli.app import new_app
from hvscale.cli.model_options import config_command
from hvscale.trainer.config import TrainConfig

app = new_app()


@app.command(cls=config_command(TrainConfig, TrainConfig.of, argument="model"))
def train(context: typer.Context) -> None:
    """Train a model: alone, or under `hvscale launch`, horovodrun, mpirun or srun.

    Example: `hvscale launch -np 2 -- hvscale train edsr-baseline --scale 2 --seconds 60`
    """
    from hvscale import trainer

    trainer.train(context.obj)
