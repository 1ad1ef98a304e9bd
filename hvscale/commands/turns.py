"""What the commands that compare in turns have in common."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hvscale.commands.console import print_json, print_message, print_warning

if TYPE_CHECKING:
    from hvscale.scaling.turns import Turns, TurnsDocument

Document = TypeVar("Document", bound="TurnsDocument")
Metric = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Finds the throughput in the ranks' output, as for `hvscale scale`."),
]


def measure(
    turns: "Turns[Document]", json: bool, write: Callable[[Document], None], show: Callable[[Document], None]
) -> None:
    """Measure, and print what there is of it however it ends: as JSON, or by `show`; `write` gets it first."""
    from hvscale.scaling.output import RunsShown

    document = turns.document
    try:
        with RunsShown(len(turns.starts), document.repeats) as shown:
            turns.measure(starting=shown.starting, measured=shown.measured, warn=print_warning)
    finally:
        if any(turn.problem is None for turn in document.runs):
            write(document)
            if json:
                print_json(document)
            else:
                show(document)
            print_message(f"folder: {turns.path}")
