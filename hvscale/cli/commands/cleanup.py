"""`hvscale cleanup`."""

from typing import Annotated

import typer

from hvscale.cli.app import Json, new_app
from hvscale.cli.console import print_json, print_message, print_warning, results, working

app = new_app()


@app.command()
def cleanup(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove what killed runs left: containers, networks, a swarm, network namespaces, MPI's shared
    memory. Running jobs are not touched.

    Example: `hvscale cleanup --dry-run`
    """
    from hvscale.launch.cleanup.leftovers import Cleanup, clean_up

    with working("searching"):
        found, problems = clean_up(remove=not dry_run)
    if json:
        print_json(Cleanup(removed=not dry_run, leftovers=found, problems=problems))
        return
    for problem in problems:
        print_warning(problem)
    for thing in found:
        results().print(
            f"{'found' if dry_run else 'removed'} {thing.kind} {thing.name} of {thing.run}",
            highlight=False,
            soft_wrap=True,
        )
    if not found:
        print_message("nothing was left behind")
