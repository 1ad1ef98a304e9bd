"""`hvscale image`."""

from typing import Annotated

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import print_message, spinner

app = new_app("Build the image of the Docker placements.")


@app.command("build")
def build(
    name: Annotated[str, typer.Option("--name", metavar="IMAGE", help="Give the image this name.")] = "hvscale:base",
) -> None:
    """Build a small image from this machine's distribution. To rebuild it, run `docker rmi` first.

    Example: `hvscale image build`
    """
    from hvscale.launch.containers import engine
    from hvscale.launch.containers.image import build as build_image

    with spinner("building the image"), engine.connection() as client:
        made = build_image(client, name)
    print_message(f"image {name}: {made}")
