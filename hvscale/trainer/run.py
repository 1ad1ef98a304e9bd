"""The run folder of a training run: the one that `hvscale launch` made, or our own with its run.json."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from hvscale.errors import EXIT_DONE, HvscaleError, SavedError
from hvscale.host import describe_host
from hvscale.run_folder import RunFolder, RunRecord, RunState, default_run_path
from hvscale.trainer.config import TrainConfig
from hvscale.trainer.ranks import Ranks, RanksChangedError


@contextmanager
def training_run(config: TrainConfig, ranks: Ranks, continued: bool) -> Iterator[RunFolder]:
    """The run folder, the same on every rank; made, and its run.json kept, by rank 0 alone. One `continued` may exist.

    Raises RequestError, on all ranks, when it cannot be made or holds a run already.
    """
    given = os.environ.get("HVSCALE_RUN")
    if config.run is None and given is not None:  # the launcher keeps its run.json
        yield RunFolder(Path(given))
        return
    path = ranks.gather(config.run or default_run_path([config.model]))[0].absolute()
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
    run = ranks.together(lambda: create(path, record, continued))
    try:
        yield run
    except RanksChangedError:  # the run goes on, maybe with another rank as its rank 0
        raise
    except BaseException as error:
        state, status = ended_by(error)
        with suppress(HvscaleError):  # a full disk may be what ended the training
            close(run, record, state, status)
        raise
    close(run, record, "finished", EXIT_DONE)


def ended_by(error: BaseException) -> tuple[RunState, int]:
    """The last state of the run, and its exit status."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 128 + signal.SIGINT
    if isinstance(error, SavedError):
        return "interrupted", error.exit_status
    return "failed", error.exit_status if isinstance(error, HvscaleError) else 1


def create(path: Path, record: RunRecord, continued: bool) -> RunFolder:
    run = RunFolder.open(path) if continued and (path / "run.json").is_file() else RunFolder.create(path)
    run.write(record)
    return run


def close(run: RunFolder, record: RunRecord, state: RunState, exit_status: int) -> None:
    record.state, record.exit_status, record.ended_at = state, exit_status, datetime.now(UTC)
    run.write(record)
