"""`hvscale cleanup`."""

from typing import Annotated

import typer

from hvscale.cli.app import Json, new_app
from hvscale.cli.console import print_json, print_message, print_warnings, results, spinner

app = new_app()


@app.command()
def cleanup(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List leftovers without removing them.")] = False,
    json: Json = False,
) -> None:
    """Remove leftovers of killed runs; running jobs are not touched.

    Leftovers are containers, networks, a Docker swarm, network namespaces and MPI's shared memory.

    Example: `hvscale cleanup --dry-run`
    """
    from hvscale.launch.cleanup.leftovers import Cleanup, clean_up

    with spinner("searching for leftovers"):
        found, problems = clean_up(remove=not dry_run)
    if json:
        print_json(Cleanup(removed=not dry_run, leftovers=found, problems=problems))
        return
    print_warnings(problems)
    for leftover in found:
        results().print(
            f"{'found' if dry_run else 'removed'} {leftover.kind} {leftover.name} of {leftover.run}",
            highlight=False,
            soft_wrap=True,
        )
    if not found:
        print_message("no leftovers found")
