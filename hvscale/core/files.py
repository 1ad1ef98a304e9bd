"""Open files safely in folders that other users may write to.

Only regular files are read, and writing follows no link outside /dev.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

DOCUMENT_BYTES = 256 << 20  # largest JSON document that is read
LINES_BYTES = 1 << 30  # largest file with one line per step


def is_folder(path: Path) -> bool:
    """Like Path.is_dir, but False where that raises: the name is too long, a folder unreadable."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_device(path: Path) -> bool:
    """Whether it is a device, or a link in /dev such as /dev/stdout: no file may replace it."""
    try:
        mode, folder = path.lstat().st_mode, path.parent.resolve()
    except OSError:
        return False
    is_link_of_system = stat.S_ISLNK(mode) and (folder == Path("/dev") or folder.is_relative_to("/proc"))
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or is_link_of_system


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises OSError for anything else: a FIFO would block, a device has no end.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a device can have side effects
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return stream


def read_bytes(path: Path, limit: int = DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises OSError if there is none or it is larger than `limit` bytes.
    """
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB", str(path))
        return stream.read(limit)


def read_text(path: Path, limit: int = DOCUMENT_BYTES, errors: str = "strict") -> str:
    """Like `read_bytes`, decoded; raises UnicodeDecodeError (a ValueError) if it is not UTF-8."""
    return read_bytes(path, limit).decode(errors=errors)


def open_new(path: Path, mode: int = 0o666) -> BinaryIO:
    """Create a file for writing; an existing file or link of that name is removed, not opened."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")
