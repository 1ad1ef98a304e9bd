"""Removes what killed ranks leave: segments in /dev/shm, and Open MPI's session folders.

A rank has its segments open or mapped while it lives, and no rank opens those of a dead one. So a
segment that no process uses can be removed. /proc shows all files of this user's processes. Names
of other kinds are never touched.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - the C library's folder
# MPICH's two kinds, those of Open MPI 5 and 4, UCX's under either, NCCL's (misc/shmutils.cc), and
# the rings and pools of MVAPICH2 2.3, whose names end with the user's number.
SEGMENT = re.compile(
    r"mpich_shm_[0-9a-f]+_\d+|(mpich_shar_tmp|nccl-)[A-Za-z0-9]{6}|(sm|vader)_segment\..+\.\d+\.[0-9a-f]+\.\d+"
    r"|ucx_shm_posix_[0-9a-f]+"
    r"|ib_(shmem|shmem_coll|shmem_bcast_coll|pool)-.+-\d+(\.tmp)?"
)
# Open MPI 5 names them after the process that created them: mpirun, prterun, or a node's daemon.
SESSION = re.compile(r"(ompi|prtrn|prted)\.\d+")
# The kernel's constant. In another PID namespace, processes outside may use the segments unseen.
INITIAL_PID_NAMESPACE = 0xEFFFFFFC

FileId = tuple[int, int]


class UnreadableProcessError(Exception):
    """A process of this user does not show its files."""


def unused(temporary: Path, since: float = 0.0) -> list[Path]:
    """This user's segments, and session folders in `temporary`, that no live process uses.

    `since`: only those created or changed after this time (s since 1970). Empty if /proc does not
    show every process.
    """
    if Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE:
        return []
    # Listed before the processes, so that segments created later are not considered.
    things = dict([*segments(since), *session_folders(temporary, since)])
    if not things:
        return []
    try:
        # Twice, because a process that forks and ends while /proc is read hides its child.
        used = set(files_in_use()) | set(files_in_use())
    except UnreadableProcessError:
        return []
    return [path for path, files in things.items() if not files & used]


def remove_unused(temporary: Path, since: float) -> None:
    """Remove what `unused` finds."""
    for path in unused(temporary, since):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file or folder; does nothing if it no longer exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def segments(since: float) -> Iterator[tuple[Path, set[FileId]]]:
    for path, status in own_entries(FOLDER, SEGMENT, since):
        if stat.S_ISREG(status.st_mode):
            yield path, {(status.st_dev, status.st_ino)}


def session_folders(temporary: Path, since: float) -> Iterator[tuple[Path, set[FileId]]]:
    """Session folders with their files, except those whose creator may still run."""
    for path, status in own_entries(temporary, SESSION, since):
        if stat.S_ISDIR(status.st_mode) and not is_alive(path.name.rpartition(".")[2]):
            inside = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
            yield path, set(filter(None, map(file_id, inside)))


def is_alive(pid: str) -> bool:
    try:
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def own_entries(folder: Path, name: re.Pattern[str], since: float) -> Iterator[tuple[Path, os.stat_result]]:
    with suppress(OSError):
        for entry in os.scandir(folder):
            if name.fullmatch(entry.name):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == os.geteuid() and status.st_ctime >= since:
                        yield Path(entry.path), status


def file_id(path: Path) -> FileId | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def files_in_use() -> Iterator[FileId]:
    """Files that live processes have open or mapped, of all processes that could use this user's.

    Raises UnreadableProcessError if one of them does not show its files.
    """
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != "1":  # init may hide its files, and is not a rank
            try:
                yield from mapped(process)
                yield from opened(process)
            except PermissionError:
                with suppress(OSError):
                    if process.stat().st_uid == os.geteuid():
                        raise UnreadableProcessError from None
            except OSError:
                continue  # the process has ended


def mapped(process: Path) -> Iterable[FileId]:
    """The files that a process has mapped.

    Lines look like `7f2c8e000000-7f2c8e200000 rw-s 00000000 00:1a 35 /dev/shm/name`.
    """
    found = set()
    for line in (process / "maps").read_bytes().splitlines():
        device, inode = line.split(None, 5)[3:5]
        if inode != b"0":
            found.add((device, inode))
    return [(os.makedev(*(int(part, 16) for part in device.split(b":"))), int(inode)) for device, inode in found]


def opened(process: Path) -> Iterator[FileId]:
    for descriptor in os.scandir(process / "fd"):
        with suppress(FileNotFoundError):
            status = descriptor.stat()
            yield status.st_dev, status.st_ino
