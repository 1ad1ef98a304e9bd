"""Remembers the settings of tuned jobs, one file each, in a folder of the user or a site."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, ConfigDict

from hvscale.core.autotune_result import Fingerprint
from hvscale.core.documents import VersionedDocument, from_json, to_json
from hvscale.core.errors import RequestError
from hvscale.core.files import read_bytes
from hvscale.core.run_folder import Library, write_text
from hvscale.core.statistics import Estimate
from hvscale.core.suggest import suggest_name
from hvscale.launch.options import LaunchOptions

VARIABLE = "HVSCALE_SETTINGS_DIR"
MAX_BYTES = 1 << 20  # of one file


class RememberedSettings(VersionedDocument):
    """The best settings of one job.

    `gain`: how many times as fast steps were as with the defaults; None if that was not proven
    before the job ended.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    schema_: Literal["hvscale/remembered-settings/1"] = "hvscale/remembered-settings/1"
    fingerprint: Fingerprint
    settings: dict[str, str]
    gain: Estimate | None
    command: list[str]
    launch: LaunchOptions
    library: Library
    saved_at: AwareDatetime

    @property
    def name(self) -> str:
        return name_of(self.fingerprint)

    def for_ranks(self) -> dict[str, object]:
        """The part that ranks need, for a request's `remembered`."""
        fingerprint = self.fingerprint.model_dump(mode="json")
        return {"fingerprint": fingerprint, "settings": self.settings, "proven": self.gain is not None}


class RememberedList(VersionedDocument):
    """The document that `hvscale settings list --json` prints."""

    schema_: Literal["hvscale/remembered-settings-list/1"] = "hvscale/remembered-settings-list/1"
    folder: str
    rows: list[RememberedSettings]


def name_of(fingerprint: Fingerprint) -> str:
    """The name of a job's settings, on the command line and as a file."""
    return hashlib.sha256(to_json(fingerprint, indent=None).encode()).hexdigest()[:12]


def memory_folder() -> Path:
    """$HVSCALE_SETTINGS_DIR, else hvscale/settings in the user's state folder."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).absolute()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "hvscale" / "settings"


def recall_all(warn: Callable[[str], None]) -> list[RememberedSettings]:
    """All remembered settings, the newest first; a file that is none gets a warning."""
    found = []
    try:
        paths = sorted(memory_folder().glob("*.json"))
    except OSError as error:
        warn(f"cannot read the remembered settings in {memory_folder()}: {error.strerror}")
        return []
    for path in paths:
        try:
            entry = from_json(RememberedSettings, read_bytes(path, MAX_BYTES))
        except OSError as error:
            warn(f"cannot read remembered settings {path}: {error.strerror}")
        except ValueError:
            warn(f"{path} holds no remembered settings of this version, so it is ignored: remove it")
        else:
            if entry.name == path.stem:
                found.append(entry)
            else:
                warn(f"{path} is not named after its job, so it is ignored: remove it")
    return sorted(found, key=lambda entry: entry.saved_at, reverse=True)


def recall(name: str, warn: Callable[[str], None]) -> RememberedSettings:
    """The settings with this name, or with a unique beginning of it. Raises RequestError."""
    entries = recall_all(warn)
    matches = [entry for entry in entries if entry.name.startswith(name)] if name else []
    name = name or '""'
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RequestError(f"{name}: {len(matches)} remembered settings begin with it; give more of the name")
    if not entries:
        raise RequestError(
            f"{name}: nothing is remembered in {memory_folder()}; `hvscale launch --autotune` adds settings"
        )
    raise RequestError(f"{name}: {suggest_name('name of settings', name, [entry.name for entry in entries])}")


def remember(entry: RememberedSettings) -> Path:
    """Save settings in place of the job's earlier ones. Raises RequestError."""
    path = path_of(entry.fingerprint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, to_json(entry))
    except OSError as error:
        raise RequestError(
            f"cannot remember the settings in {path.parent}: {error.strerror}; set {VARIABLE} to a folder that can be written"
        ) from error
    return path


def path_of(fingerprint: Fingerprint) -> Path:
    """The file of a job's settings, whether it exists or not."""
    return memory_folder() / f"{name_of(fingerprint)}.json"


def is_remembered(fingerprint: Fingerprint) -> bool:
    """Whether the job has settings, as far as the folder can be read."""
    with suppress(OSError):
        return path_of(fingerprint).exists()
    return False


def forget(fingerprint: Fingerprint) -> bool:
    """Remove a job's settings; returns whether there were any. Raises RequestError."""
    path = path_of(fingerprint)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RequestError(f"cannot remove {path}: {error.strerror}") from error
    return True


def now() -> datetime:
    return datetime.now(UTC)
