"""Remembered settings as rows of tables."""

import shlex
from collections.abc import Sequence

from hvscale.comm_tuning.autotune.memory import RememberedSettings
from hvscale.comm_tuning.autotune.rank_side.request import words
from hvscale.core.units import human_bytes

LIST_COLUMNS = ["name", "np", "gradients", "library", "gain", "settings"]


def list_rows(entries: Sequence[RememberedSettings]) -> list[list[str]]:
    return [
        [
            entry.name,
            str(entry.fingerprint.np),
            human_bytes(entry.fingerprint.gradient_bytes),
            entry.fingerprint.library,
            gain_words(entry),
            settings_words(entry),
        ]
        for entry in entries
    ]


def description(entry: RememberedSettings) -> list[list[str]]:
    """Name and value of each property."""
    job = entry.fingerprint
    return [
        ["name", entry.name],
        ["settings", settings_words(entry)],
        ["gain", gain_words(entry)],
        ["gradients", f"{human_bytes(job.gradient_bytes)} in {job.tensors} tensors"],
        ["ranks", f"{job.np}, {job.ranks_per_node} on a node"],
        ["library", job.library],
        ["link", job.link or "-"],
        ["command", shlex.join(entry.command)],
        ["saved", f"{entry.saved_at:%Y-%m-%d %H:%M} UTC"],
    ]


def settings_words(entry: RememberedSettings) -> str:
    return words(entry.settings)


def gain_words(entry: RememberedSettings) -> str:
    gain = entry.gain
    if gain is None:
        return "not proven"
    limits = f" ({gain.low:.2f} to {gain.high:.2f})" if gain.low is not None and gain.high is not None else ""
    return f"{gain.mean:.2f}x{limits}"
