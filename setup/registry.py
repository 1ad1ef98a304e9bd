"""The package registry's settings: they are the machine's own, in pip's and uv's variables and
files, never the project's.
"""

import os


def mirror() -> str | None:
    """The registry that the machine's variables name in place of the usual one."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    return None


def registry_variables() -> dict[str, str]:
    """A machine that tells only one of uv and pip about its mirror means both."""
    address = mirror()
    return {"UV_DEFAULT_INDEX": address, "PIP_INDEX_URL": address} if address else {}
