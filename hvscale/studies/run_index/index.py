"""The index of a folder: its runs and studies, filtered and sorted."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.progress import Progress
from hvscale.core.run_folder import OPEN_STATES
from hvscale.core.suggest import suggest_name
from hvscale.launch import placements
from hvscale.studies.run_index.entry import UNREADABLE, RunEntry, find_study, read_entry

Column = Literal["name", "command", "np", "placement", "state", "throughput", "communication", "age", "size"]
STATES = (*OPEN_STATES, "finished", "stopped", "failed", "interrupted", UNREADABLE)
AGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhdw])")
AGE_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
LARGEST_FIRST = ("np", "throughput", "communication", "size")


class RunIndex(VersionedDocument):
    """The document that `hvscale runs --json` prints.

    `others`: folders that are neither runs nor studies. `removed`: the names that --prune removed;
    `kept`: why it kept others that the filters selected, by name.
    """

    schema_: Literal["hvscale/runs/1"] = "hvscale/runs/1"
    folder: str
    entries: list[RunEntry]
    others: int = 0
    removed: list[str] = []
    kept: dict[str, str] = {}

    @property
    def path(self) -> Path:
        return Path(self.folder)


@dataclass(frozen=True)
class Filter:
    """Which entries to show; None or empty selects all. Ages are in seconds."""

    states: tuple[str, ...] = ()
    command: str | None = None
    placement: str | None = None
    np: int | None = None
    newer_than: float | None = None
    older_than: float | None = None

    def __post_init__(self) -> None:
        """Raises RequestError if no age is in both limits."""
        if self.newer_than is not None and self.older_than is not None and self.newer_than <= self.older_than:
            raise RequestError(
                "no run is newer than --newer-than and older than --older-than: give --newer-than the longer time"
            )

    @property
    def selects_all(self) -> bool:
        return self == Filter()

    def selects(self, entry: RunEntry) -> bool:
        """Whether the entry has every requested property."""
        words = " ".join([entry.name, entry.kind, *entry.command]).lower()
        placements = (entry.placement or "").split(", ")
        return (
            (not self.states or entry.state in self.states)
            and (self.command is None or self.command.lower() in words)
            and (self.placement is None or any(_is_placement(one, self.placement) for one in placements))
            and (self.np is None or (entry.np is not None and (entry.np_min or entry.np) <= self.np <= entry.np))
            and (self.newer_than is None or entry.age_seconds < self.newer_than)
            and (self.older_than is None or entry.age_seconds > self.older_than)
        )


def _is_placement(found: str, asked: str) -> bool:
    """Whether `asked` selects this placement; `docker` selects `docker:rank` too."""
    return found == asked or found.startswith(f"{asked}:")


def parse_age(text: str, option: str) -> float:
    """The seconds of an age such as `30d`. Raises RequestError if it is invalid."""
    match = AGE.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{option} {text}: not an age; write a number and s, m, h, d or w, such as {option} 30d")
    return float(match[1]) * AGE_SECONDS[match[2]]


def read_index(folder: Path) -> RunIndex:
    """The index of all runs and studies directly in `folder`; symbolic links are left out.

    Raises RequestError if `folder` cannot be read, or is itself a run.
    """
    try:
        paths = sorted(Path(one.path) for one in os.scandir(folder) if one.is_dir(follow_symlinks=False))
    except OSError as error:
        raise RequestError(
            f"{folder} cannot be read ({error.strerror}): give the folder that holds your runs"
        ) from error
    if (folder / "run.json").exists():
        raise RequestError(
            f"{folder} is a run: give the folder that holds your runs, or see it with `hvscale report {folder}`"
        )
    now, entries, others = time.time(), [], 0
    with Progress("reading runs", len(paths)) as progress:
        for path in paths:
            progress.advance(1)
            if path.name.startswith("."):
                continue
            try:
                entry = read_entry(path, now)
            except FileNotFoundError:  # removed meanwhile
                continue
            if entry is None:
                others += 1
            else:
                entries.append(entry)
    return RunIndex(folder=str(folder), entries=entries, others=others)


def study_around(folder: Path) -> Path | None:
    """The study that `folder` is, or lies in; None if there is none."""
    path = folder.resolve()
    for one in (path, *path.parents):
        study = find_study(one)
        if study is not None and study.is_in_its_folder:
            return one
    return None


def select(entries: list[RunEntry], wanted: Filter, by: str = "age", reverse: bool = False) -> list[RunEntry]:
    """The entries that the filter selects, sorted.

    By age: the newest first; by other numbers: the largest first, and last those without one.
    Raises RequestError for another column, or a state that no run can have.
    """
    if by not in get_args(Column):
        raise RequestError(f"--sort {by}: not a column; give one of {', '.join(get_args(Column))}")
    known = {*STATES, *(entry.state for entry in entries)}
    if unknown := [state for state in wanted.states if state not in known]:
        raise RequestError(f"--state {unknown[0]}: not a state; give one of {', '.join(STATES)}")
    if wanted.placement is not None:
        check_placement(wanted.placement, entries)
    values = {entry.name: _value(entry, by) for entry in entries if wanted.selects(entry)}
    known_first = [entry for entry in entries if values.get(entry.name) is not None]
    known_first.sort(key=lambda entry: values[entry.name], reverse=reverse != (by in LARGEST_FIRST))
    return known_first + [entry for entry in entries if entry.name in values and values[entry.name] is None]


def check_placement(name: str, entries: list[RunEntry]) -> None:
    """Raises RequestError for a placement that no run can have."""
    known = {*placements.names(), *(one for entry in entries for one in (entry.placement or "").split(", "))}
    if not any(_is_placement(one, name) for one in known):
        raise RequestError(f"--placement {name}: {suggest_name('placement', name, placements.names())}")


def _value(entry: RunEntry, by: str) -> Any:
    if by == "command":
        return [entry.kind, *entry.command]
    fields = {
        "throughput": "images_per_second",
        "communication": "communication_share",
        "age": "age_seconds",
        "size": "bytes",
    }
    return getattr(entry, fields.get(by, by))
