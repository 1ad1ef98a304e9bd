"""`hvscale runs`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvscale.cli.app import Csv, Json, new_app
from hvscale.cli.console import print_json, print_message, progress_bar, results
from hvscale.core.errors import RequestError
from hvscale.core.numbers import Ranks, limits

if TYPE_CHECKING:
    from hvscale.studies.run_index.entry import RunEntry
    from hvscale.studies.run_index.index import RunIndex

app = new_app()
REMARKS_SHOWN = 8


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of runs, or a study.")] = Path("runs"),
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Show only runs in this state, such as finished or failed; repeatable. [default: all]"
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Show only runs with this text in command or name. [default: all]"),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show only runs with this placement, such as slurm. [default: all]"),
    ] = None,
    np: Annotated[
        int | None,
        typer.Option(
            "--np", "-np", metavar="N", help="Show only runs of this number of ranks. [default: all]", **limits(Ranks)
        ),
    ] = None,
    newer_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Show only runs that ended within this time, such as 12h or 7d. [default: all]"
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Show only runs that ended before this time, such as 30d or 8w. [default: all]"
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Sort by name, command, np, placement, state, throughput, communication, age or size.",
        ),
    ] = "age",
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Reverse the order. [default: newest, fastest, largest first]")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write an HTML page too, with the throughput over steps and links to the reports. [default: no page]",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove the runs that the filters select, after showing them and asking; unreadable ones need "
            "--state unreadable. [default: none]",
        ),
    ] = False,
    keep_best: Annotated[
        bool,
        typer.Option(
            "--keep-best",
            help="Keep the fastest finished run of each command, np and placement (with --prune); where none has a "
            "throughput, keep the newest.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking, for scripts (with --prune).")] = False,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """List the runs and studies of a folder, and remove old ones.

    A study is one row; give its folder to list the runs in it.

    Example: `hvscale runs --prune --older-than 30d --keep-best`
    """
    from hvscale.core.documents import require_no_document
    from hvscale.studies.run_index.entry import UNREADABLE
    from hvscale.studies.run_index.index import Filter, parse_age, read_index, select
    from hvscale.studies.run_index.table import write_entries

    wanted = Filter(
        states=tuple(state or ()),
        command=command,
        placement=placement,
        np=np,
        newer_than=parse_age(newer_than, "--newer-than") if newer_than is not None else None,
        older_than=parse_age(older_than, "--older-than") if older_than is not None else None,
    )
    check_prune(prune, keep_best, yes, wanted.selects_all)
    for output in filter(None, (html, csv)):
        require_no_document(output)
    with progress_bar():
        index = read_index(folder)
    index.entries, everything = select(index.entries, wanted, sort, reverse), index.entries
    if prune:
        remove_selected(index, everything, keep_best, yes, show=not json, unreadable=UNREADABLE in wanted.states)
    if html is not None:
        from hvscale.studies.run_index.page import write_index_page

        with progress_bar():
            write_index_page(index, html)
    if json:
        print_json(index)
    elif not prune:
        print_index(index, selected_of=len(everything))
    if html is not None:
        print_message(f"page: {html}")
    if csv is not None:
        write_entries(index, csv)


def check_prune(prune: bool, keep_best: bool, yes: bool, selects_all: bool) -> None:
    """Raises RequestError if the options about --prune do not go together."""
    if not prune and (keep_best or yes):
        raise RequestError(
            f"{'--keep-best' if keep_best else '--yes'} belongs to --prune: add --prune, or leave it out"
        )
    if prune and selects_all:
        raise RequestError("--prune removes what the filters select: give at least one, such as --older-than 30d")
    if prune and not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RequestError("--prune asks before it removes, and there is no terminal to ask on: give --yes")


def remove_selected(
    index: "RunIndex", everything: "list[RunEntry]", keep_best: bool, yes: bool, show: bool, unreadable: bool
) -> None:
    """Show what will be removed, ask, and remove it; updates `index`.

    Raises RequestError if a folder cannot be removed.
    """
    from hvscale.core.units import human_bytes
    from hvscale.studies.run_index.prune import left_overs, plan_removal, remove_entries
    from hvscale.studies.run_index.table import print_entries

    plan = plan_removal(index, everything, keep_best, unreadable)
    index.kept = dict(plan.kept)
    what = f"{len(plan.remove)} runs and studies"
    size = human_bytes(sum(entry.bytes for entry in plan.remove))
    if show and plan.remove:
        print_entries(results(), plan.remove)
    if show:
        print_remarks([f"{name} is kept: {reason}" for name, reason in plan.kept.items()])
    if plan.remove and not yes and not typer.confirm(f"Remove {what}, {size}?", err=True):
        print_message("nothing was removed")
        return
    if not plan.remove and not left_overs(index.path):
        print_message("nothing to remove")
        return
    try:
        with progress_bar():
            remove_entries(index, plan)
    finally:
        if show:
            print_remarks([f"{name} is kept: {reason}" for name, reason in index.kept.items() if name not in plan.kept])
        size = human_bytes(sum(entry.bytes for entry in plan.remove if entry.name in index.removed))
        print_message(f"removed {len(index.removed)} of {what}, {size}")


def print_index(index: "RunIndex", selected_of: int) -> None:
    """Print the table, and what could not be read."""
    from hvscale.studies.run_index.prune import left_overs
    from hvscale.studies.run_index.table import print_entries

    if index.entries:
        print_entries(results(), index.entries)
    print_remarks([f"{entry.name}: {entry.problem}" for entry in index.entries if entry.problem is not None])
    others = f"; other folders: {index.others}" if index.others else ""
    of_all = f" of {selected_of}" if selected_of != len(index.entries) else ""
    print_message(f"{len(index.entries)}{of_all} runs and studies in {index.folder}{others}")
    if left := left_overs(index.path):
        print_message(f"an interrupted removal left {len(left)} hidden folders: the next --prune deletes them")


def print_remarks(texts: list[str]) -> None:
    """Print the first of the texts, and how many more there are."""
    for text in texts[:REMARKS_SHOWN]:
        print_message(text)
    if len(texts) > REMARKS_SHOWN:
        print_message(f"and {len(texts) - REMARKS_SHOWN} more, which --json shows")
