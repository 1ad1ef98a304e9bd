"""A folder that one process at a time measures in."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvscale.errors import RequestError
from hvscale.run_folder import cannot_write


@contextmanager
def alone_in(path: Path, command: str) -> Iterator[None]:
    """Make the folder where it is not there, and hold it for this process. Raises RequestError when it cannot be made, or another holds it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(
                f"{path}: another {command} is measuring there; give another folder with --run"
            ) from error
        yield
    finally:
        os.close(descriptor)
