"""Removes runs and studies of a folder.

A removal first renames the folders to `.removed-...`, then deletes them: an interrupted removal
leaves hidden folders that the next one deletes, and never half a run.
"""

import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from hvscale.core.errors import RequestError
from hvscale.core.folder_lock import FolderInUseError, FolderLock
from hvscale.core.progress import Progress
from hvscale.core.run_folder import OPEN_STATES, RunFolder
from hvscale.studies.run_index.entry import RUN, UNREADABLE, RunEntry, find_study, has_run_folders
from hvscale.studies.run_index.index import RunIndex, study_around

QUIET_SECONDS = 600  # since the last change of a run that cannot say whether it is running
REMOVED = re.compile(r"\.removed-[0-9a-f]{16}")
# Fields of documents that name runs by the folder's name alone.
RUN_FIELDS = ("run", "runs", "recording", "profiled_runs")
References = dict[str, set[str]]


class Plan(NamedTuple):
    """What will be removed, in this order, and why other selected entries are kept, by name."""

    remove: list[RunEntry]
    kept: dict[str, str]


def plan_removal(index: RunIndex, everything: list[RunEntry], keep_best: bool, unreadable: bool = False) -> Plan:
    """Which of the index's entries can be removed. `everything`: all entries of the folder.

    Kept are entries that may be running, those that a study refers to which stays, and with
    `keep_best` the best of each command, np and placement. Those that cannot be read are kept
    unless `unreadable`. Raises RequestError if the folder belongs to a study: its runs go with it.
    """
    if (study := study_around(index.path)) is not None:
        raise RequestError(f"{index.folder} belongs to the study {study}: its runs are removed with it, not one by one")
    best = {entry.name for entry in best_entries(everything)} if keep_best else set()
    kept: dict[str, str] = {}
    for entry in index.entries:
        reason = why_kept(index.path / entry.name, entry, unreadable)
        reason = reason or ("it is the best of its command, np and placement" if entry.name in best else None)
        if reason is not None:
            kept[entry.name] = reason
    remove = {entry.name: entry for entry in index.entries if entry.name not in kept}
    references = find_references(index.path, everything)
    while stay := referred_from_outside(remove, references):
        for name, study_name in stay.items():
            del remove[name]
            kept[name] = f"the study {study_name} refers to it and stays"
    order = sorted(remove, key=lambda name: (_depth(name, references, frozenset()), name))
    return Plan([remove[name] for name in order], kept)


def why_kept(path: Path, entry: RunEntry, unreadable: bool) -> str | None:
    """Why an entry must not be removed; None if it can be. `unreadable`: as in `plan_removal`."""
    if entry.state == UNREADABLE:
        return why_unreadable_is_kept(path, entry, unreadable)
    if entry.is_open:
        return f"it is {entry.state}"
    if entry.kind == RUN:
        return None
    study = find_study(path)
    if study is None or not study.is_in_its_folder:
        return "its document was written for another folder: remove it by hand if you do not need it"
    running = next(running_runs(path), None)
    return f"its run {running} is running" if running is not None else None


def why_unreadable_is_kept(path: Path, entry: RunEntry, unreadable: bool) -> str | None:
    try:
        is_ours = entry.kind == RUN and has_run_folders(path)
    except PermissionError:
        is_ours = False
    if not is_ours:
        return f"it may not be hvscale's: {entry.problem}; remove it by hand if you do not need it"
    if entry.age_seconds < QUIET_SECONDS:
        return f"it may be running, because its files changed {entry.age_seconds:.0f} s ago: {entry.problem}"
    return None if unreadable else f"it may be running: {entry.problem}; --state {UNREADABLE} removes such runs"


def running_runs(path: Path) -> Iterator[Path]:
    """The runs inside a study's folder that may be running, relative to it."""
    for file in sorted(path.rglob("run.json")):
        with suppress(RequestError):
            if RunFolder(file.parent).read().state in OPEN_STATES:
                yield file.parent.relative_to(path)


def best_entries(entries: list[RunEntry]) -> list[RunEntry]:
    """The fastest entry of each kind, command, np and placement; the newest if none has a speed."""
    best: dict[Any, RunEntry] = {}
    for entry in entries:
        if entry.state != "finished":
            continue
        key = (entry.kind, tuple(entry.command), entry.np, entry.placement)
        if key not in best or _goodness(entry) > _goodness(best[key]):
            best[key] = entry
    return list(best.values())


def _goodness(entry: RunEntry) -> tuple[float, float]:
    return entry.images_per_second or 0.0, -entry.age_seconds


def find_references(folder: Path, entries: list[RunEntry]) -> References:
    """For each entry, the names of the studies whose documents refer to it."""
    names = {entry.name for entry in entries}
    references: References = {name: set() for name in names}
    for entry in entries:
        study = find_study(folder / entry.name) if entry.kind != RUN else None
        for text, is_run in _texts(study.content, "") if study is not None else ():
            if "/" in text or is_run:
                for name in names.intersection(text.split("/")) - {entry.name}:
                    references[name].add(entry.name)
    return references


def _texts(value: Any, field: str) -> Iterator[tuple[str, bool]]:
    """All texts in a document, each with whether its field names runs."""
    if isinstance(value, str):
        yield value, field in RUN_FIELDS
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, field)


def referred_from_outside(remove: dict[str, RunEntry], references: References) -> dict[str, str]:
    """Those of `remove` that a study refers to which is not among them, with its name."""
    outside = {name: sorted(references[name] - remove.keys()) for name in remove}
    return {name: studies[0] for name, studies in outside.items() if studies}


def _depth(name: str, references: References, seen: frozenset[str]) -> int:
    """The place in the order: studies go first, so that an interruption leaves none without its
    runs.
    """
    above = references[name] - seen - {name}
    return 1 + max(_depth(one, references, seen | {name}) for one in above) if above else 0


def remove_entries(index: RunIndex, plan: Plan) -> None:
    """Remove what the plan says, and what interrupted removals left; updates `index`.

    An entry that another process has taken meanwhile is kept. Raises RequestError if a folder
    cannot be removed; the others are removed all the same.
    """
    for entry in plan.remove:
        try:
            hide(index.path / entry.name, entry.state == UNREADABLE)
            index.removed.append(entry.name)
        except FolderInUseError:
            index.kept[entry.name] = "it is in use"
        except RequestError as error:
            index.kept[entry.name] = str(error)
        except OSError as error:
            index.kept[entry.name] = f"it cannot be renamed: {error.strerror}"
    index.entries = [entry for entry in index.entries if entry.name not in index.removed]
    errors: list[str] = []
    hidden = left_overs(index.path)
    with Progress("removing", len(hidden)) as progress:
        for path in hidden:
            try:
                shutil.rmtree(path)
            except FileNotFoundError:  # another process removes it too
                pass
            except OSError as error:
                errors.append(f"{error.filename} cannot be removed: {error.strerror}")
            progress.advance(1)
    if errors:
        raise RequestError(errors[0] + (f"; {len(errors) - 1} more as well" if len(errors) > 1 else ""))


def hide(path: Path, unreadable: bool) -> None:
    """Rename a folder that nobody uses. Raises RequestError or OSError if that is not possible."""
    if path.is_symlink() or not path.is_dir():
        raise RequestError("it is no folder any more")
    run = RunFolder(path)
    # Before the lock: that of a killed process shows that the run is not running any more.
    if run.run_json.exists() and _state(run, unreadable) in OPEN_STATES:
        raise RequestError("it is running")
    with closing(FolderLock(path)) as lock:
        hidden = path.with_name(f".removed-{secrets.token_hex(8)}")
        path.rename(hidden)
        lock.path = hidden  # a new run may already have the old name


def _state(run: RunFolder, unreadable: bool) -> str:
    try:
        return run.read().state
    except RequestError:
        if unreadable:
            return UNREADABLE
        raise


def left_overs(folder: Path) -> list[Path]:
    """The folders that interrupted removals left."""
    return [
        path
        for path in sorted(folder.iterdir())
        if REMOVED.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    ]
