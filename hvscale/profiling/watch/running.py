"""Finds the run to watch."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.folder_lock import LOCK
from hvscale.core.run_folder import OPEN_STATES, RunFolder

STUDY_DEPTH = 3  # a study's runs lie in its folder, and its own may lie in that of an experiment


def newest_running(root: Path) -> RunFolder:
    """The run in `root`, or in a study there, that started last and has not ended.

    Raises RequestError if there is none.
    """
    running = []
    for path in _locked_folders(root, STUDY_DEPTH):
        with suppress(RequestError):
            run = RunFolder.open(path)
            record = run.read()
            if record.state in OPEN_STATES:
                running.append((record.started_at, str(path), run))
    if not running:
        raise RequestError(
            f"no run in {root.absolute()} is running: give the folder of a run, as in `hvscale watch RUN`"
        )
    return max(running)[-1]


def _locked_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders with a lock file, which every run and study has until it ends."""
    entries: list[Path] = []
    with suppress(OSError):
        entries = sorted(folder.iterdir())
    for entry in entries:
        with suppress(OSError):  # another user's own
            if (entry / LOCK).is_file():
                yield entry
                if depth > 1:
                    yield from _locked_folders(entry, depth - 1)
