"""Tells `hvrank`, the parent of each rank's command (native/rank), what to start."""

import os

from hvscale.core.built_library import built_library
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord, cannot_write, write_atomically
from hvscale.launch import flavours

PROGRAM = "hvrank"
FORMAT = "hvscale-rank/1"


def rank_program(run: RunFolder, flavour: flavours.Flavour) -> list[str]:
    """What a launcher starts in place of each rank's command.

    Raises RequestError if the program was not built.
    """
    ranks, local_ranks = zip(*((one.rank, one.local_rank) for one in flavour.rank_variables), strict=True)
    return [str(built_library(PROGRAM)), str(run.path), ",".join(ranks), ",".join(local_ranks)]


def write_order(run: RunFolder, record: RunRecord) -> None:
    """Write the command, its own variables and the policy of `--devices`, as native/rank/order.h
    describes.

    Raises RequestError if the folder cannot be written or a word cannot be passed to a program.
    """
    variables = [f"{name}={value}" for name, value in record.rank_environment.items()]
    policy, library_variable = record.launch.get("devices", "all"), record.library_devices_variable or ""
    words = [FORMAT, str(policy), library_variable, *counted(variables), *counted(record.command)]
    if broken := next((word for word in words if "\0" in word), None):
        raise RequestError(f"{broken!r}: a command and its variables cannot contain a NUL character")
    try:
        write_atomically(
            run.ranks / "order", lambda stream: stream.writelines(os.fsencode(word) + b"\0" for word in words)
        )
    except OSError as error:
        raise cannot_write(run.path, error) from error


def counted(words: list[str]) -> list[str]:
    return [str(len(words)), *words]
