"""`hvscale train`."""

import typer

from hvscale.cli.app import Autotune, AutotuneSteps, new_app
from hvscale.cli.model_options import config_command
from hvscale.trainer.config import TrainConfig

app = new_app()


@app.command(cls=config_command(TrainConfig, TrainConfig.of, argument="model"))
def train(context: typer.Context, autotune: Autotune = False, autotune_steps: AutotuneSteps = None) -> None:
    """Train a model: alone, or under `hvscale launch`, horovodrun, mpirun or srun.

    Example: `hvscale launch -np 2 -- hvscale train edsr-baseline --scale 2 --seconds 60`
    """
    from hvscale import trainer
    from hvscale.cli.launch_options import check_autotune

    check_autotune(autotune, autotune_steps)
    if not autotune:
        trainer.train(context.obj)
        return
    from hvscale.comm_tuning.autotune.train import TunedTraining
    from hvscale.core.errors import SavedError

    tuning, run, has_failed = TunedTraining(autotune_steps), context.obj.run, True
    try:
        run, has_failed = trainer.train(context.obj).run, False
    except SavedError:  # it was asked to stop
        has_failed = False
        raise
    finally:
        tuning.finish(run, has_failed)
