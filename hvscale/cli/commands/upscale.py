"""`hvscale upscale`."""

import functools

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import print_message
from hvscale.cli.model_options import config_command
from hvscale.trainer.config import checked
from hvscale.trainer.inference.config import UpscaleConfig

app = new_app()


@app.command(cls=config_command(UpscaleConfig, functools.partial(checked, UpscaleConfig), argument="images"))
def upscale(context: typer.Context) -> None:
    """Upscale images with a trained super-resolution model.

    Example: `hvscale upscale photo.jpg --weights runs/20261121T001530Z-edsr-baseline`
    """
    from hvscale.trainer.inference.upscale import upscale_files

    upscale_files(context.obj, lambda image, picture: print_message(f"{image} -> {picture}"))
