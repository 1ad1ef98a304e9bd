"""The run folder of a training run: the one `hvscale launch` created, or a new one."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from hvscale.core.errors import EXIT_DONE
from hvscale.core.folder_lock import FolderInUseError
from hvscale.core.host import describe_host
from hvscale.core.run_folder import RunFolder, RunRecord, default_run_path
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks, RanksChangedError


@contextmanager
def training_run(config: TrainConfig, ranks: Ranks, may_exist: bool, regrouped: bool = False) -> Iterator[RunFolder]:
    """Context: the run folder, the same on every rank. Rank 0 creates and locks it.

    Rank 0 also writes its run.json, unless a launcher does. `may_exist`: the folder may hold a
    training run. `regrouped`: this elastic job created it, and its ranks have changed since. Raises
    RequestError, on all ranks, if the folder cannot be created, holds a run or is in use.
    """
    given = os.environ.get("HVSCALE_RUN")
    if config.run is None and given is not None:  # the launcher writes run.json
        yield RunFolder(Path(given))
        return
    path = ranks.allgather(ranks.all_or_fail(lambda: run_path(config) if ranks.rank == 0 else Path()))[0]
    if ranks.rank != 0:
        ranks.all_or_fail(lambda: None)
        yield RunFolder(path)
        return
    record = RunRecord(
        state="running",
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
        np=ranks.size,
        library=ranks.library(),
        host=describe_host(),
        working_directory=str(Path.cwd()),
        started_at=datetime.now(UTC),
    )
    run = ranks.all_or_fail(lambda: create_run(path, record, may_exist, regrouped))
    changed = None
    with run.at_work(record):
        try:
            yield run
            record.state, record.exit_status, record.ended_at = "finished", EXIT_DONE, datetime.now(UTC)
            run.write(record)
        except RanksChangedError as change:  # the run continues, possibly with another rank 0
            changed = change
    if changed is not None:
        raise changed


def run_path(config: TrainConfig) -> Path:
    return (config.run or default_run_path([config.model])).absolute()


def create_run(path: Path, record: RunRecord, may_exist: bool, regrouped: bool) -> RunFolder:
    try:
        run = RunFolder.create(path, may_exist)
    except FolderInUseError:
        if not regrouped:
            raise
        run = RunFolder(path)  # this job's previous rank 0 hangs and still holds the lock
    run.begin(record)
    return run
