"""The options of `hvscale tune-collectives`: collectives, numbers of ranks, sizes, eager limits."""

import math
from collections.abc import Iterator
from pathlib import Path

from hvscale.bench.collectives.sizes import parse_size
from hvscale.comm_tuning.collectives.tables import files
from hvscale.comm_tuning.collectives.tables.table import Operation
from hvscale.comm_tuning.knobs.library import spelling_of
from hvscale.comm_tuning.knobs.settings import target_of
from hvscale.core.errors import RequestError
from hvscale.core.numbers import read_whole
from hvscale.core.run_folder import DEFAULT_PLACEMENT, RunFolder
from hvscale.core.suggest import suggest_name
from hvscale.launch.flavours import LIBRARY_DECIDES
from hvscale.launch.options import LaunchOptions
from hvscale.profiling.analyze.breakdown import read_recording, tabulate
from hvscale.profiling.analyze.grouping import parse_bins

DEFAULT_EAGER_LIMIT = 1 << 20
SIZE_FACTOR = 4  # between sizes; extra sizes are added near crossovers


def parse_operations(text: str) -> list[Operation]:
    """Parses --ops. Raises RequestError, suggesting the nearest name, for an unknown collective."""
    words = [word.strip() for word in text.split(",")]
    found = [operation for operation in files.OPERATIONS if operation in words]
    if unknown := [word for word in words if word not in files.OPERATIONS]:
        raise RequestError(f"--ops {unknown[0]}: {suggest_name('collective', unknown[0], files.OPERATIONS)}")
    return found


def check_knobs(options: LaunchOptions, operations: list[Operation]) -> None:
    """Raises RequestError for a knob of --set or --settings that the table is to choose."""
    chosen = {*(f"{operation}_algorithm" for operation in operations), "segment_size"}
    if "broadcast" in operations:
        chosen.add("hvscale_broadcast")
    for knob, text in options.knobs.items():
        if knob in chosen:
            raise RequestError(f"{knob}={text}: tune-collectives chooses it, so it cannot be set: remove it")


def parse_nps(text: str | None, np: int) -> list[int]:
    """Parses --nps. Default: the powers of two up to `np`, and `np`.

    Raises RequestError for an invalid value.
    """
    if text is None:
        return sorted({*(1 << power for power in range(1, np.bit_length()) if 1 << power <= np), np})
    found = {read_whole(word, 2, np) for word in text.split(",")}
    if None in found:
        raise RequestError(f"--nps {text}: give numbers from 2 to {np} (-np), separated by commas")
    return sorted(number for number in found if number is not None)


def parse_eager_limits(text: str | None, options: LaunchOptions) -> list[int | None]:
    """Parses --eager-limits. The library's own limit (None) comes first.

    The default adds one limit if messages go over a network whose eager limit can be set. Raises
    RequestError for an invalid value, and for a library without such a setting.
    """
    spelling = spelling_of(options.mpi, "eager_threshold")
    can_be_set = spelling is not None and (
        spelling.transport is None or target_of([], [], options).transport in (LIBRARY_DECIDES, spelling.transport)
    )
    if text is None:
        return [None, DEFAULT_EAGER_LIMIT] if can_be_set and options.placement.name != DEFAULT_PLACEMENT else [None]
    if text == "own":
        return [None]
    if spelling is None or not can_be_set:
        raise RequestError(
            f"--eager-limits {text}: the eager limit of {options.mpi} cannot be set here; remove --eager-limits"
        )
    limits = sorted({parse_size("--eager-limits", word) for word in text.split(",")})
    for limit in limits:
        try:
            spelling.values.parse(str(limit))
        except ValueError as error:
            raise RequestError(
                f"--eager-limits {text}: {options.mpi} accepts limits of {spelling.values.accepted} bytes"
            ) from error
    return [None, *limits]


def sizes_of(
    operations: list[Operation], min_bytes: str, max_bytes: str, from_run: Path | None
) -> dict[Operation, list[int]]:
    """The message sizes in bytes, by collective.

    They grow by 4x from `min_bytes` to `max_bytes`. With a run, they are the powers of two nearest
    to its messages in that range. Raises RequestError for an invalid range, and for a run without
    such messages.
    """
    first, last = parse_size("--min-bytes", min_bytes), parse_size("--max-bytes", max_bytes)
    if last < first:
        raise RequestError(f"--min-bytes {min_bytes} is more than --max-bytes {max_bytes}: swap them")
    if from_run is None:
        every = [*growing_sizes(first, last), last]
        return {operation: sorted(set(every)) for operation in operations}
    found = sizes_in_run(RunFolder.open(from_run))
    sizes = {
        operation: sorted({size for size in found.get(operation, ()) if first <= size <= last})
        for operation in operations
    }
    kept = {operation: of_operation for operation, of_operation in sizes.items() if of_operation}
    if not kept:
        raise RequestError(
            f"--from {from_run}: no {' or '.join(operations)} of {min_bytes} to {max_bytes} in this run: choose others with --ops, or remove --from"
        )
    return kept


def growing_sizes(first: int, last: int) -> Iterator[int]:
    size = first
    while size <= last:
        yield size
        size *= SIZE_FACTOR


def sizes_in_run(run: RunFolder) -> dict[str, set[int]]:
    """The powers of two nearest to the message sizes of a run, by collective.

    Raises RequestError for an unreadable run.
    """
    found: dict[str, set[int]] = {}
    for row in tabulate(read_recording(run), parse_bins("pow2"), run.path.name).rows:
        if row.bytes:
            found.setdefault(row.operation, set()).add(1 << round(math.log2(row.bytes / row.calls)))
    return found
