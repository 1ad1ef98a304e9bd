"""What to say about a name that is not known."""

import difflib
from collections.abc import Iterable


def unknown(name: str, known: Iterable[str]) -> str:
    """`did you mean ...? known are ...`."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}known are {', '.join(names)}"
