"""A folder that is complete or absent: it is built beside its final path, then renamed."""

import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from logged_run import SetUpError

# PATH's separator; control characters are refused too.
REFUSED_CHARACTERS = ":"


@contextmanager
def new_prefix(prefix: Path, marker: str) -> Iterator[Path]:
    """Context: an empty folder that becomes `prefix` when the block ends without an exception.

    Otherwise nothing changes. An earlier installation, which has a file named `marker`, is
    replaced. Raises SetUpError if `prefix` is anything else, or another installation is running.
    """
    check_path(prefix)
    made = make_parents(prefix.parent)
    unfinished, replaced = (prefix.with_name(f".{prefix.name}.{state}") for state in ("installing", "replaced"))
    try:
        with locked(prefix):
            try:
                clean_up(prefix, unfinished, replaced)
                check_prefix(prefix, marker)
                unfinished.mkdir()
                yield unfinished
                replace_paths(unfinished, prefix)
                subprocess.run(["sync", "--file-system", unfinished], check=False)
                if prefix.exists():
                    prefix.rename(replaced)
                unfinished.rename(prefix)
            finally:
                clean_up(prefix, unfinished, replaced)
    finally:
        for folder in made:  # only empty ones: after a success they hold the prefix
            with suppress(OSError):
                folder.rmdir()


def clean_up(prefix: Path, unfinished: Path, replaced: Path) -> None:
    """Remove what an installation left, also a killed one; restore what it did not replace."""
    if replaced.exists() and not prefix.exists():
        replaced.rename(prefix)
    for folder in (unfinished, replaced):
        shutil.rmtree(folder, ignore_errors=True)


def check_path(prefix: Path) -> None:
    """Raise SetUpError if programs cannot be installed under this path."""
    if any(character in str(prefix) for character in REFUSED_CHARACTERS) or not str(prefix).isprintable():
        raise SetUpError(f"{str(prefix)!r}: a path with ':' or control characters cannot hold programs; choose another")
    if not prefix.name:
        raise SetUpError(f"{prefix} cannot be PREFIX: choose a folder that does not exist yet")


def check_prefix(prefix: Path, marker: str) -> None:
    """Raise SetUpError, which says what to do, if `prefix` exists and is no installation."""
    if prefix.is_symlink() or (prefix.exists() and not prefix.is_dir()):
        raise SetUpError(f"{prefix} is not a folder: choose one that does not exist yet")
    if prefix.exists() and any(prefix.iterdir()) and not (prefix / marker).is_file():
        raise SetUpError(f"{prefix} has files of something else: choose a folder that does not exist yet")


def make_parents(folder: Path) -> list[Path]:
    """Create the missing folders up to `folder`; return those, the innermost first."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetUpError(f"cannot create {folder} ({error.strerror}): choose a PREFIX in a folder of yours") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SetUpError(f"{folder} is not writable: choose a PREFIX in a folder of yours")
    return missing


@contextmanager
def locked(prefix: Path) -> Iterator[None]:
    """Lock `prefix`. Raises SetUpError if it is locked; the lock of a killed process has ended."""
    path = prefix.with_name(f".{prefix.name}.lock")
    while True:
        with opened(path) as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise SetUpError(f"another installation into {prefix} is running: wait for it") from error
            # Whoever had the lock may have removed the file since this process opened it.
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                continue
            try:
                yield
            finally:
                path.unlink()
            return


def opened(path: Path) -> IO[str]:
    """Open the lock. Raises SetUpError if its folder cannot hold files."""
    try:
        return path.open("w")
    except OSError as error:
        raise SetUpError(f"{path.parent} cannot be written ({error.strerror}): choose a PREFIX elsewhere") from error


def replace_paths(folder: Path, prefix: Path) -> None:
    """Write the final path into the programs, settings and records of a virtual environment."""
    packages = next(folder.glob("lib/python3*/site-packages"))
    for file in [*folder.iterdir(), *(folder / "bin").iterdir(), *packages.glob("horovod/*.json")]:
        if file.is_symlink() or not file.is_file():
            continue
        content = changed = file.read_bytes()
        if b"\0" in content:
            continue
        # Newer versions of Python quote the path in bin/activate for the shell.
        for written in (lambda path: shlex.quote(str(path)), str):
            changed = changed.replace(os.fsencode(written(folder)), os.fsencode(written(prefix)))
        if changed != content:
            file.write_bytes(changed)
