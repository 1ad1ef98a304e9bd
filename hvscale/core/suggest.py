"""Suggest the nearest known name for an unknown one."""

import difflib
from collections.abc import Iterable
from typing import TypeVar

from hvscale.core.errors import RequestError

Choice = TypeVar("Choice", bound=str)


def suggest_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return `unknown model; did you mean edsr? Known: edsr, vgg16`. `what`: here "model"."""
    names = list(known)
    nearest = nearest_name(name, names)
    meant = f"; did you mean {nearest}?" if nearest else "."
    return f"unknown {what}{meant} Known: {', '.join(names)}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, ignoring case; None if none is similar."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[found[0]] if found else None


def check_choice(option: str, value: str, choices: tuple[Choice, ...]) -> Choice:
    """Return the value if it is a choice. Raises RequestError, with the nearest choice, if not."""
    for choice in choices:
        if choice == value:
            return choice
    raise RequestError(f"{option} {value}: {suggest_name('value', value, choices)}")
