"""`hvscale upscale`."""

from typing import Any

from hvscale.cli.app import new_app
from hvscale.cli.config_options import options_of
from hvscale.cli.console import print_message
from hvscale.trainer.config import checked
from hvscale.trainer.inference.config import UpscaleConfig

app = new_app()


@app.command()
@options_of(UpscaleConfig, argument="images")
def upscale(**options: Any) -> None:
    """Enlarge pictures with a trained super-resolution model.

    Example: `hvscale upscale photo.jpg --weights runs/20261121T001530Z-edsr-baseline`
    """
    from hvscale.trainer.inference.upscale import upscale as enlarge

    enlarge(checked(UpscaleConfig, options), lambda image, picture: print_message(f"{image} -> {picture}"))
