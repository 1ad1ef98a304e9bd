"""The C parts of this package: where they lie, and how a job's ranks get them in front of their own
libraries.
"""

from collections.abc import Mapping
from pathlib import Path

import hvscale.core
from hvscale.core.errors import RequestError


def built_library(name: str) -> Path:
    """Where the library of this file name lies. Raises RequestError when it was not built."""
    # An editable install keeps what is built apart from the sources: the package's path names both
    # folders.
    for folder in hvscale.core.__path__:
        path = Path(folder) / name
        if path.is_file():
            return path
    raise RequestError(f"{name} is not in this installation: build it again with `pip install .` where a C compiler is")


def preloaded(library: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """LD_PRELOAD with the library before those of `environment`. Raises RequestError for a path
    that it cannot name.
    """
    if any(character in str(library) for character in " :"):
        raise RequestError(
            f"{library}: LD_PRELOAD cannot name a path with a space or a colon: install hvscale elsewhere"
        )
    others = environment.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library}:{others}" if others else str(library)}
