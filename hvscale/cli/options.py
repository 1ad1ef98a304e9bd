"""Options and arguments that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer

COMMAND_LAST = {"allow_interspersed_args": False}
Command = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The program to start, with its arguments; write it behind --.")
]
Bins = Annotated[
    str,
    typer.Option(
        metavar="BINS", help="Message sizes of the rows: study, pow2, or your own upper edges, such as 64K,1M,16M."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table to a CSV file too.")]
Metric = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Finds the throughput in the ranks' output, as for `hvscale scale`."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
PerRank = Annotated[bool, typer.Option("--per-rank", help="One table row for each rank as well.")]
Explain = Annotated[
    bool | None,
    typer.Option(
        "--explain/--no-explain",
        help="Also say which rank the others waited for, what Horovod did with its tensors, how much of a step communication was exposed, and "
        "how often buffers come again. By default where a run has recorded 64 MiB at most (a million calls).",
    ),
]


def folder_of(what: str) -> Any:
    """--run of a command that goes on with what it finds there."""
    text = f"The folder of the {what}; one that was broken off is gone on with. By default a new one under runs/."
    return typer.Option("--run", metavar="DIR", help=text)
