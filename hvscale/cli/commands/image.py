"""`hvscale image`."""

from typing import Annotated

import typer

from hvscale.cli.app import new_app
from hvscale.cli.console import print_message, working

app = new_app("Build the image in which ranks run in Docker placements.")


@app.command("build")
def build(
    name: Annotated[str, typer.Option("--name", metavar="IMAGE", help="Name of the image.")] = "hvscale:base",
) -> None:
    """Build a small image from this machine's own distribution. To build it again, first remove it
    with `docker rmi`.

    Example: `hvscale image build`
    """
    from hvscale.launch.containers import engine
    from hvscale.launch.containers.image import build as build_image

    with working("building the image"), engine.connection() as client:
        made = build_image(client, name)
    print_message(f"image {name}: {made}")
