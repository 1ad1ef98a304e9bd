"""`hvscale cleanup`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Json, new_app
from hvscale.cli.console import print_json, print_message, print_warnings, results, spinner

app = new_app()


@app.command()
def cleanup(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Run folders whose profiles stayed on their nodes (`profile --record-dir`): collect these. "
            "[default: the killed runs in runs/, and those that left containers]",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List leftovers without removing them.")] = False,
    json: Json = False,
) -> None:
    """Remove leftovers of killed runs; running jobs are not touched.

    Leftovers are containers, networks, a Docker swarm, network namespaces and MPI's shared memory.
    Profiles that a killed run left on its nodes are moved into its run folder.

    Example: `hvscale cleanup --dry-run`
    """
    from hvscale.core.run_folder import RunFolder
    from hvscale.launch.cleanup.leftovers import Cleanup, Leftover, clean_up
    from hvscale.studies.node_local_profiles import killed_runs, rescue, stayed_in

    with spinner("searching for leftovers"):
        with_profiles = [RunFolder.open(run.absolute()) for run in runs] if runs else killed_runs()
    found, problems, kept = [], [], []
    for run in with_profiles:
        folder = stayed_in(run)
        lines = rescue(run) if folder is not None and not dry_run else []
        problems += [f"{run.path}: {line}" for line in lines]
        if lines:
            kept.append(str(run.path))
        elif folder is None and runs and not json:
            print_message(f"{run.path}: no profiles stayed on its nodes")
        elif folder is not None:
            found.append(Leftover(kind="profiles", name=str(folder), run=str(run.path)))
    with spinner("searching for leftovers"):
        others, not_searched = clean_up(remove=not dry_run, keep=kept)
    found, problems = [*found, *others], [*problems, *not_searched]
    if json:
        print_json(Cleanup(removed=not dry_run, leftovers=found, problems=problems))
        return
    print_warnings(problems)
    for leftover in found:
        done = "collected" if leftover.kind == "profiles" else "removed"
        results().print(
            f"{'found' if dry_run else done} {leftover.kind} {leftover.name} of {leftover.run}",
            highlight=False,
            soft_wrap=True,
        )
    if not found:
        print_message("no leftovers found")
