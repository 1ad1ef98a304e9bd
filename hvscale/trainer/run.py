"""The run folder of a training run: the one `hvscale launch` made, or a new one with its own
run.json.
"""

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
def training_run(config: TrainConfig, ranks: Ranks, continues: bool, regrouped: bool = False) -> Iterator[RunFolder]:
    """The run folder, the same on every rank; only rank 0 creates it, locks it and writes its
    run.json.

    `continues`: it may exist. `regrouped`: this elastic job created it, and its ranks have changed
    since. Raises RequestError, on all ranks, if the folder cannot be created, already holds a run
    or is in use by another process.
    """
    given = os.environ.get("HVSCALE_RUN")
    if config.run is None and given is not None:  # the launcher writes its run.json
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
    run = ranks.all_or_fail(lambda: create_run(path, record, continues, regrouped))
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


def create_run(path: Path, record: RunRecord, continues: bool, regrouped: bool) -> RunFolder:
    try:
        run = RunFolder.create(path, continues)
    except FolderInUseError:
        if not regrouped:
            raise
        run = RunFolder(path)  # locked by this job's previous rank 0, which hangs
    run.begin(record)
    return run
