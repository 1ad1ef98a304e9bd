"""What to say about a name that is not known: the nearest one that is."""

import difflib
from collections.abc import Iterable
from typing import TypeVar

from hvscale.core.errors import RequestError

Choice = TypeVar("Choice", bound=str)


def suggest_name(what: str, name: str, known: Iterable[str]) -> str:
    """`unknown model; did you mean edsr? Known: edsr, vgg16`. `what`: the word for such a thing."""
    names = list(known)
    nearest = nearest_name(name, names)
    meant = f"; did you mean {nearest}?" if nearest else "."
    return f"unknown {what}{meant} Known: {', '.join(names)}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is spelled most like `name`, whatever its case; None when none is like
    it.
    """
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[found[0]] if found else None


def check_choice(option: str, value: str, choices: tuple[Choice, ...]) -> Choice:
    """The value as one of the choices. Raises RequestError, suggesting the nearest choice, for any
    other value.
    """
    for choice in choices:
        if choice == value:
            return choice
    raise RequestError(f"{option} {value}: {suggest_name('value', value, choices)}")
