"""Lock a folder for one process, and check that it belongs to this user.

The lock is an flock on `.lock` in the folder. The kernel releases it when the process ends, and
children do not inherit it. On NFS it works between hosts (flock(2)); file systems without locks are
not protected. `.lock` is removed with the lock: an unlocked `.lock` is a stale lock of a killed
process.
"""

import errno
import fcntl
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular

LOCK = ".lock"
PATIENCE_SECONDS = 0.5  # is_abandoned takes a shared lock for a moment
LONGEST_OWNER = 512


class FolderInUseError(RequestError):
    """Another process has locked the folder."""


class FolderLock:
    """A lock on a folder, until `close` or the end of this process."""

    def __init__(self, path: Path, option: str = "--run", patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Create the folder if needed and lock it. `option`: the one that names it, for errors.

        Raises FolderInUseError if another process still holds the lock after `patience_seconds`,
        RequestError if it is another user's, OSError if it is not writable.
        """
        self.path, self.option = path, option
        self.made = make_folder(path)
        if not self.made:
            check_own(path)
        self.stream = self._locked(patience_seconds)
        self.stream.truncate(0)
        self.stream.write(f"{socket.gethostname()} {os.getpid()}\n".encode())

    def _locked(self, patience_seconds: float) -> IO[bytes]:
        deadline = time.monotonic() + patience_seconds
        while True:
            stream = self._open()
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise in_use(self.path, stream, self.option) from error
                stream.close()
                time.sleep(0.02)
                continue
            except OSError:  # no locks on this file system
                return stream
            with suppress(FileNotFoundError):  # removed by its last owner, or replaced by a new one
                if (self.path / LOCK).lstat().st_ino == os.fstat(stream.fileno()).st_ino:
                    return stream
            stream.close()

    def _open(self) -> IO[bytes]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        stream = os.fdopen(os.open(self.path / LOCK, flags, 0o666), "r+b", buffering=0)
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            stream.close()
            raise OSError(errno.EINVAL, f"{LOCK} in it is not a regular file")
        return stream

    def close(self) -> None:
        """Release the lock; remove the folder if the lock created it and it is empty."""
        if self.stream.closed:
            return
        with suppress(OSError):
            (self.path / LOCK).unlink()
        self.stream.close()
        if self.made:
            with suppress(OSError):
                self.path.rmdir()


def check_unlocked(path: Path) -> None:
    """Raises FolderInUseError if another process has locked the folder. Changes nothing in it."""
    with suppress(OSError), open_regular(path / LOCK) as stream:  # no lock, or none on this file system
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise in_use(path, stream) from error


def in_use(path: Path, lock: IO[bytes], option: str = "--run") -> FolderInUseError:
    """The error that names the owner of a locked folder; `lock` is its open lock file."""
    host, _, pid = lock.read(LONGEST_OWNER).decode(errors="replace").strip().partition(" ")
    owner = f"process {pid} on {host}" if pid else "another process"
    return FolderInUseError(f"{path} is in use by {owner}: choose another folder with {option}, or wait until it ends")


def is_abandoned(path: Path) -> bool:
    """Return whether the folder has a stale lock; False if this host cannot tell."""
    try:
        with open_regular(path / LOCK) as stream:
            host = stream.read(LONGEST_OWNER).decode(errors="replace").partition(" ")[0]
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return host == socket.gethostname()
    except OSError:
        return False


def make_folder(path: Path) -> bool:
    """Create a folder and its parents; return False if the name already exists."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of the folders that are empty, in this order."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def make_own_folder(path: Path) -> None:
    """Create a folder inside one of ours, or accept an existing one.

    Raises RequestError for a link and for another user's folder.
    """
    if not make_folder(path):
        if path.is_symlink():
            raise RequestError(f"{path} is a symbolic link: remove it, or give another folder with --run")
        check_own(path)


def check_own(path: Path) -> None:
    """Check that only this user owns and writes the folder.

    Raises RequestError otherwise, OSError if it is not a folder. Some file systems give every file
    one owner (NFS with root_squash) or one mode (FAT, SMB): a new file shows which.
    """
    if path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid()):
        raise RequestError(f"{path} is a symbolic link of another user (uid {path.lstat().st_uid}): give its target")
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    others_own_it = found.st_uid != os.geteuid()
    others_write = bool(found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX)
    if not others_own_it and not others_write:
        return
    with tempfile.TemporaryFile(dir=path) as probe:
        new = os.fstat(probe.fileno())
    if others_own_it and new.st_uid != found.st_uid:
        raise RequestError(f"{path} belongs to another user (uid {found.st_uid}): give another folder with --run")
    if others_write and not new.st_mode & stat.S_IWOTH:
        raise RequestError(f"every user may write in {path}: `chmod o-w` it, or give another folder with --run")
