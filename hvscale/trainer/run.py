"""The run folder of a training run: the one that `hvscale launch` made, or our own with its run.json."""

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
def training_run(
    config: TrainConfig, ranks: Ranks, continued: bool, gathered_anew: bool = False
) -> Iterator[RunFolder]:
    """The run folder, the same on every rank; made, locked, and its run.json kept, by rank 0 alone. One `continued` may exist.

    `gathered_anew`: this elastic job made the folder, and ranks have come or gone since.
    Raises RequestError, on all ranks, when it cannot be made, holds a run already, or another process has it.
    """
    given = os.environ.get("HVSCALE_RUN")
    if config.run is None and given is not None:  # the launcher keeps its run.json
        yield RunFolder(Path(given))
        return
    path = ranks.gather(ranks.together(lambda: path_of(config) if ranks.rank == 0 else Path()))[0]
    if ranks.rank != 0:
        ranks.together(lambda: None)
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
    run = ranks.together(lambda: create(path, record, continued, gathered_anew))
    changed = None
    with run.at_work(record):
        try:
            yield run
            record.state, record.exit_status, record.ended_at = "finished", EXIT_DONE, datetime.now(UTC)
            run.write(record)
        except RanksChangedError as change:  # the run goes on, maybe with another rank as its rank 0
            changed = change
    if changed is not None:
        raise changed


def path_of(config: TrainConfig) -> Path:
    return (config.run or default_run_path([config.model])).absolute()


def create(path: Path, record: RunRecord, continued: bool, gathered_anew: bool) -> RunFolder:
    try:
        run = RunFolder.create(path, continued)
    except FolderInUseError:
        if not gathered_anew:
            raise
        run = RunFolder(path)  # held by this job's last rank 0, which hangs
    run.begin(record)
    return run
