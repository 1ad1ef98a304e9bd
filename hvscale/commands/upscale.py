"""`hvscale upscale`."""

from typing import Any

from hvscale.commands.app import new_app
from hvscale.commands.console import print_message
from hvscale.commands.fields import options_of
from hvscale.trainer.config import checked
from hvscale.trainer.eval_config import UpscaleConfig

app = new_app()


@app.command()
@options_of(UpscaleConfig, argument="images")
def upscale(**options: Any) -> None:
    """Enlarge pictures with a trained super-resolution model.

    Example: `hvscale upscale photo.jpg --weights runs/20261121T001530Z-edsr-baseline`
    """
    from hvscale.trainer.upscale import upscale as enlarge

    enlarge(checked(UpscaleConfig, options), lambda image, picture: print_message(f"{image} -> {picture}"))
