"""`hvscale settings`: the settings that `--autotune` remembers."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Json, new_app
from hvscale.cli.console import print_json, print_message, print_table, print_warning
from hvscale.core.errors import RequestError

app = new_app("List, show, export or forget the settings that `hvscale launch --autotune` remembers.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name in `hvscale settings list`, or its beginning.")]


@app.command("list")
def list_settings(json: Json = False) -> None:
    """List the remembered settings, the newest first.

    Example: `hvscale settings list`
    """
    from hvscale.comm_tuning.autotune.memory import RememberedList, memory_folder, recall_all
    from hvscale.comm_tuning.autotune.terminal import LIST_COLUMNS, list_rows

    found = recall_all(print_warning)
    if json:
        print_json(RememberedList(folder=str(memory_folder()), rows=found))
    elif found:
        print_table(LIST_COLUMNS, list_rows(found))
    else:
        print_message(f"nothing is remembered in {memory_folder()}")


@app.command()
def show(name: Name, json: Json = False) -> None:
    """Show remembered settings, and the job that they are for.

    Example: `hvscale settings show 3f2a`
    """
    from hvscale.comm_tuning.autotune.memory import recall
    from hvscale.comm_tuning.autotune.terminal import description

    entry = recall(name, print_warning)
    if json:
        print_json(entry)
    else:
        print_table(["", ""], description(entry))


@app.command()
def export(
    name: Name,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Write to this folder, in place of files with the same names.")
    ],
) -> None:
    """Write remembered settings as settings.toml and as files for other launchers.

    Example: `hvscale settings export 3f2a --to tuned`
    """
    from hvscale.comm_tuning.autotune.job import write_settings
    from hvscale.comm_tuning.autotune.memory import recall

    entry = recall(name, print_warning)
    if entry.gain is None:
        raise RequestError(f"{entry.name}: its gain is not proven yet: start the job with --autotune once more")
    np = entry.fingerprint.np
    written = write_settings(to, entry.command, np, entry.launch, entry.library, entry.settings, entry.gain)
    print_message(f"{len(written)} files in {to}: {', '.join(path.name for path in written)}")


@app.command()
def forget(name: Name) -> None:
    """Remove remembered settings.

    Example: `hvscale settings forget 3f2a`
    """
    from hvscale.comm_tuning.autotune import memory

    entry = memory.recall(name, print_warning)
    memory.forget(entry.fingerprint)
    print_message(f"forgot {entry.name}")
