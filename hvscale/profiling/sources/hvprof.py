"""The files that hvprof wrote, one for each process that made a collective call."""

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.errors import RequestError
from hvscale.profiling.events import Events, Recording, source
from hvscale.profiling.profile_file import BITWISE, ProfileFile
from hvscale.run_folder import RunFolder


@source("hvprof")
def read(run: RunFolder) -> Recording | None:
    """Reads every profile of the run; one that cannot be read becomes a warning as long as another can.

    Raises RequestError when none can be read.
    """
    paths = sorted(run.hvprof.glob("rank-*.hvp"))
    if not paths:
        return None
    np_of_job = run.read().np
    columns: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    operations: list[str] = []
    ranks: set[int] = set()
    errors: list[RequestError] = []
    warnings: list[str] = []
    overwritten = 0
    for path in paths:
        try:
            profile = ProfileFile(path)
            _append(profile, columns, operations)
        except RequestError as error:
            errors.append(error)
            warnings.append(str(error))
            continue
        ranks.add(profile.header.rank)
        warnings += profile.warnings
        if profile.overwritten:
            overwritten += profile.overwritten
            warnings.append(
                f"{path}: the ring of {profile.header.capacity} records was full, and the oldest {profile.overwritten} "
                f"were overwritten: set HVPROF_MIB higher"
            )
    if len(errors) == len(paths):
        raise errors[0]
    missing = sorted(set(range(np_of_job)) - ranks)
    if missing:
        warnings.append(f"no profile of rank {_list(missing)}: it made no collective call, or its file is lost")
    return Recording("hvprof", _events(columns, operations), np_of_job, sorted(ranks), 1, overwritten, warnings)


def _append(profile: ProfileFile, columns: defaultdict[str, list[NDArray[Any]]], operations: list[str]) -> None:
    header = profile.header
    operations += [name for name in header.operations if name and name not in operations]
    codes = np.array([operations.index(name) if name else 0 for name in header.operations], np.uint8)
    for records in profile.chunks():
        columns["rank"].append(np.full(len(records), header.rank, np.int32))
        columns["operation"].append(codes[records["operation"]])
        columns["bytes"].append(records["bytes"].astype(np.int64))
        columns["start_ns"].append(records["start_ns"].astype(np.int64) + header.realtime_minus_monotonic_ns)
        columns["duration_ns"].append(records["duration_ns"].astype(np.int64))
        columns["communicator_size"].append(records["communicator_size"].astype(np.int32))
        columns["bitwise"].append(records["flags"] & BITWISE != 0)
        columns["thread"].append(records["thread"].astype(np.int64))


def _events(columns: defaultdict[str, list[NDArray[Any]]], operations: list[str]) -> Events:
    def column(name: str, dtype: type) -> NDArray[Any]:
        # The pieces are let go one column at a time: ten million events would not fit twice into a GiB.
        return np.concatenate([np.empty(0, dtype), *columns.pop(name, [])])

    return Events(
        operations=tuple(operations),
        rank=column("rank", np.int32),
        operation=column("operation", np.uint8),
        bytes=column("bytes", np.int64),
        start_ns=column("start_ns", np.int64),
        duration_ns=column("duration_ns", np.int64),
        communicator_size=column("communicator_size", np.int32),
        bitwise=column("bitwise", np.bool_),
        thread=column("thread", np.int64),
    )


def _list(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
