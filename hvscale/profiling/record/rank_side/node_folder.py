"""Prepares a folder of a node's own disk for its ranks' profiles, and collects them after the job.

Standard library only, no import of hvscale. Started on each node with one of these arguments:

- `prepare FOLDER`: creates FOLDER for this user only and prints `{"free_bytes": ...,
  "filesystem": ...}`.
- `collect FOLDER TARGET FIRST LAST`: moves the profiles of the ranks FIRST to LAST into TARGET,
  which all nodes see, and removes FOLDER. Only the used part of a profile travels. Prints `{"all":
  ..., "done": ...}`, in bytes, after each piece.
- `rescue FOLDER TARGET FIRST LAST`: as `collect`, unless a process still writes into FOLDER.

A failure is a line on stderr and status 1. What could not be moved stays in FOLDER, and the last
line is `{"left": [ranks]}`.
"""

import contextlib
import json
import os
import re
import stat
import struct
import sys
from typing import BinaryIO

MAGICS = (b"hvprof\r\n", b"hvnccl\r\n")
HEADER = struct.Struct("<12xII4xQ")  # header bytes, record bytes, capacity
RECORDED_AT = 4032  # offset of the number of records ever written
HEADER_BYTES = 4096
PIECE_BYTES = 8 << 20
# rank-00003.hvp, nccl-00003.812.hvn; with a dot in front, what a killed process left unfinished.
PROFILE = re.compile(r"(?P<unfinished>\.?)(?:rank|nccl)-(?P<rank>[0-9]{5,9})\.[A-Za-z0-9_.-]+")


def prepare(folder: str) -> None:
    """Create the folder; nodes that are really one machine share it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)  # noqa: PTH102
    about = os.lstat(folder)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise SystemExit(f"{folder} already exists and is not a folder of this user alone")
    disk = os.statvfs(folder)
    with open("/proc/sys/kernel/random/boot_id") as stream:  # noqa: PTH123
        machine = stream.read().strip()
    found = {"free_bytes": disk.f_bavail * disk.f_frsize, "filesystem": f"{machine} {about.st_dev}"}
    print(json.dumps(found))


def used_bytes(stream: BinaryIO) -> int:
    """The bytes of a profile up to its last record; all of a file that is no profile."""
    size = os.fstat(stream.fileno()).st_size
    raw = stream.read(HEADER_BYTES)
    if len(raw) < HEADER_BYTES or raw[:8] not in MAGICS:
        return size
    header_bytes, record_bytes, capacity = HEADER.unpack_from(raw)
    recorded = int.from_bytes(raw[RECORDED_AT : RECORDED_AT + 8], "little")
    return int(min(size, header_bytes + min(recorded, capacity) * record_bytes))


def written_parts(file: int, end: int) -> list[tuple[int, int]]:
    """The parts of a file that are not holes, up to `end`."""
    parts, at = [], 0
    while at < end:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError:  # only a hole is left
            break
        at = min(os.lseek(file, start, os.SEEK_HOLE), end)
        if start < end:
            parts.append((start, at))
    return parts


class Collection:
    """Moves files, and prints how far it is."""

    def __init__(self, folder: str, target: str, names: list[str]) -> None:
        self.folder, self.target = folder, target
        self.all, self.done = sum(self._bytes_of(name) for name in names), 0

    def _bytes_of(self, name: str) -> int:
        with open(os.path.join(self.folder, name), "rb") as stream:  # noqa: PTH118, PTH123
            return sum(end - start for start, end in written_parts(stream.fileno(), used_bytes(stream)))

    def report(self) -> None:
        print(json.dumps({"all": self.all, "done": self.done}), flush=True)

    def move(self, name: str) -> None:
        """Copy one file under a temporary name, rename it and remove the original."""
        source, target = os.path.join(self.folder, name), os.path.join(self.target, name)  # noqa: PTH118
        temporary = os.path.join(self.target, f".{name}.{os.getpid()}")  # noqa: PTH118
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(source, "rb") as stream, os.fdopen(os.open(temporary, flags, 0o644), "wb") as copy:  # noqa: PTH123
                self._copy(stream, copy)
                copy.flush()
                os.fsync(copy.fileno())
            os.link(temporary, target)  # never replaces a profile
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108
        os.unlink(source)  # noqa: PTH108

    def _copy(self, stream: BinaryIO, copy: BinaryIO) -> None:
        used = used_bytes(stream)
        copy.truncate(used)
        for start, end in written_parts(stream.fileno(), used):
            stream.seek(start)
            copy.seek(start)
            while start < end:
                piece = stream.read(min(PIECE_BYTES, end - start))
                if not piece:
                    return
                copy.write(piece)
                start += len(piece)
                self.done += len(piece)
                self.report()


def collect(folder: str, target: str, first: int, last: int) -> int:
    """Move the profiles of these ranks; return 1 if one of them stays."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208
    except FileNotFoundError:  # another node of this machine has removed it
        return 0
    found = [match for name in names if (match := PROFILE.fullmatch(name))]
    own = [match for match in found if first <= int(match["rank"]) <= last]
    for match in own:
        if match["unfinished"]:
            os.unlink(os.path.join(folder, match[0]))  # noqa: PTH108, PTH118
    collection = Collection(folder, target, [match[0] for match in own if not match["unfinished"]])
    collection.report()
    left: dict[int, str] = {}
    for match in own:
        try:
            if not match["unfinished"]:
                collection.move(match[0])
        except OSError as error:
            left[int(match["rank"])] = f"cannot be copied to {target}: {error.strerror}"
    if left:
        print(json.dumps({"left": sorted(left)}), flush=True)
        print(next(iter(left.values())), file=sys.stderr)
        return 1
    with contextlib.suppress(OSError):  # it still holds files of another node of this machine
        os.rmdir(folder)  # noqa: PTH106
    return 0


def writer(folder: str) -> int | None:
    """A process of this user that has a file of the folder mapped; None without any."""
    inside = os.fsencode(os.path.realpath(folder)) + b"/"
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:  # noqa: PTH123
            if any(inside in line for line in maps):
                return int(pid)
    return None


def main() -> int:
    task, folder, *arguments = sys.argv[1:]
    try:
        if task == "prepare":
            prepare(folder)
            return 0
        if task == "rescue" and (pid := writer(folder)) is not None:
            print(f"process {pid} still writes there: end it first", file=sys.stderr)
            return 1
        target, first, last = arguments
        return collect(folder, target, int(first), int(last))
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
