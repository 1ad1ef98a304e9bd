"""A folder that belongs to one living process, and to one user.

The lock is an flock on the file `.lock` in the folder: the kernel drops it when the process ends,
however it ends, and its children do not inherit it. On NFS it holds between hosts (flock(2)); where
a file system has no locks it holds nowhere. The file goes with the lock, so one that is there
without it was left by a process that was killed.
"""

import errno
import fcntl
import os
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular

LOCK = ".lock"
PATIENCE_SECONDS = 0.5  # whoever asks whether a folder is locked holds a shared lock for an instant
LONGEST_OWNER = 512


class FolderInUseError(RequestError):
    """Another living process holds the folder."""


class FolderLock:
    """Held from its making until `close`, or until this process ends."""

    def __init__(self, path: Path) -> None:
        """Make the folder where there is none, and lock it.

        Raises FolderInUseError when another process holds it, RequestError when it is another
        user's, OSError when it cannot be written.
        """
        self.path = path
        self.made = make_folder(path)
        if not self.made:
            check_own(path)
        self.stream = self._locked()
        self.stream.truncate(0)
        self.stream.write(f"{socket.gethostname()} {os.getpid()}\n".encode())

    def _locked(self) -> IO[bytes]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            stream = self._open()
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise FolderInUseError(self._in_use(stream)) from error
                stream.close()
                time.sleep(0.02)
                continue
            except OSError:  # no locks on this file system
                return stream
            with suppress(FileNotFoundError):  # its last owner removed it, or a new owner made another one
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

    def _in_use(self, stream: IO[bytes]) -> str:
        host, _, pid = stream.read(LONGEST_OWNER).decode(errors="replace").strip().partition(" ")
        owner = f"process {pid} on {host}" if pid else "another process"
        return f"{self.path} is in use by {owner}: give another folder with --run, or wait until it ends"

    def close(self) -> None:
        """Release it; a folder that was made for it and is still empty is removed."""
        if self.stream.closed:
            return
        with suppress(OSError):
            (self.path / LOCK).unlink()
        self.stream.close()
        if self.made:
            with suppress(OSError):
                self.path.rmdir()


def is_abandoned(path: Path) -> bool:
    """Whether the process that locked the folder ended without releasing it. False where this host
    cannot know.
    """
    try:
        with open_regular(path / LOCK) as stream:
            host = stream.read(LONGEST_OWNER).decode(errors="replace").partition(" ")[0]
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return host == socket.gethostname()
    except OSError:
        return False


def make_folder(path: Path) -> bool:
    """Make a folder and its parents; False when there is something with its name already."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def make_own_folder(path: Path) -> None:
    """Make a folder inside one of our own, or take one that we made before. Raises RequestError for
    a link and for another user's.
    """
    if not make_folder(path):
        if path.is_symlink():
            raise RequestError(f"{path} is a symbolic link: remove it, or give another folder with --run")
        check_own(path)


def check_own(path: Path) -> None:
    """Raises RequestError when another user owns the folder or may change what is in it, OSError
    when it is no folder.

    On file systems that give every file to one owner (NFS with root_squash) or one mode (FAT, SMB)
    the folder is compared with a new file.
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
