"""Find the C libraries and programs of this package; preload the libraries into a job's ranks."""

from collections.abc import Mapping
from pathlib import Path

import hvscale.core
from hvscale.core.errors import RequestError


def built_library(name: str) -> Path:
    """Return the path of a C library or program by file name. Raises RequestError if it was not
    built.
    """
    # An editable install keeps built files apart from the sources: __path__ has both folders.
    for folder in hvscale.core.__path__:
        path = Path(folder) / name
        if path.is_file():
            return path
    raise RequestError(
        f"{name} is missing from this installation: install a C compiler, then run `pip install .` again"
    )


def preloaded(library: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return LD_PRELOAD with the library; it is added in front of those in `environment`.

    Raises RequestError if the path contains a space or a colon.
    """
    if any(character in str(library) for character in " :"):
        raise RequestError(
            f"{library}: LD_PRELOAD cannot name a path with a space or a colon: install hvscale elsewhere"
        )
    others = environment.get("LD_PRELOAD", "")
    if str(library) in others.split(":"):
        return {"LD_PRELOAD": others}
    return {"LD_PRELOAD": f"{library}:{others}" if others else str(library)}
