"""The ranks' log files, followed while the job runs."""

from collections.abc import Callable, Iterator
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import RunFolder

TAIL_BYTES = 64 * 1024
# The longest line that is shown as one: a longer one is shown in pieces, so that no rank can fill
# this process's memory.
PIECE_BYTES = 64 * 1024
# Read of one log before the others and the user's Ctrl-C have their turn.
READ_BYTES = 4 * 1024 * 1024
# Of a line in an error message.
SHOWN_CHARACTERS = 2000


class RankOutput:
    """Hands every whole line that a rank writes to `show(rank, line)`; `\\r` keeps what a terminal
    would leave standing.

    A line of more than PIECE_BYTES is handed over in pieces of that size, each as a line of its
    own. The log file itself is whole.
    """

    def __init__(self, run: RunFolder, np: int, show: Callable[[int, str], None]) -> None:
        self.logs = {rank: run.log(rank) for rank in range(np)}
        self.read = dict.fromkeys(self.logs, 0)
        self.unfinished = dict.fromkeys(self.logs, b"")
        self.show = show

    def poll(self) -> None:
        """Show what is new, at most READ_BYTES of each rank."""
        for rank in self.logs:
            self._show_new(rank, READ_BYTES)

    def finish(self) -> None:
        """Show all that is left."""
        for rank in self.logs:
            self._show_new(rank, None)
            if rest := self.unfinished[rank]:
                self.show(rank, visible(rest))

    def _show_new(self, rank: int, limit: int | None) -> None:
        try:
            size = self.logs[rank].stat().st_size
            if size <= self.read[rank]:
                return
            with self.logs[rank].open("rb") as log:
                log.seek(self.read[rank])
                until = size if limit is None else min(size, self.read[rank] + limit)
                while self.read[rank] < until and (new := log.read(PIECE_BYTES)):
                    self.read[rank] += len(new)
                    lines, self.unfinished[rank] = split_lines(self.unfinished[rank] + new)
                    for line in lines:
                        self.show(rank, visible(line))
        except FileNotFoundError:
            return


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a log, as a terminal would leave them standing and in pieces as RankOutput shows
    them; none where there is no log.
    """
    unfinished = b""
    try:
        with open_regular(path) as log:
            while new := log.read(PIECE_BYTES):
                lines, unfinished = split_lines(unfinished + new)
                yield from map(visible, lines)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    if unfinished:
        yield visible(unfinished)


def split_lines(text: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines, and what has no end yet; both in pieces where they are too long, the same
    pieces wherever reading stopped.
    """
    *whole, rest = text.split(b"\n")
    lines = []
    for line in whole:
        pieces, end = split_long_line(line)
        lines += [*pieces, end]
    pieces, rest = split_long_line(rest)
    return [*lines, *pieces], rest


def split_long_line(line: bytes) -> tuple[list[bytes], bytes]:
    """The pieces of a line that is too long, and what is left: at most PIECE_BYTES, and a `\\r`
    that takes effect with what comes next.
    """
    if len(line) <= PIECE_BYTES:
        return [], line
    pieces, left = [], b""
    for overwriting in filter(None, line.split(b"\r")):
        left = overwriting
        while len(left) > PIECE_BYTES:
            end = end_of_piece(left)
            pieces.append(left[:end])
            left = left[end:]
    return pieces, left + b"\r" if line.endswith(b"\r") else left


def end_of_piece(line: bytes) -> int:
    """Where a piece ends: not inside a character of several bytes."""
    end = PIECE_BYTES
    while end > PIECE_BYTES - 4 and line[end] & 0xC0 == 0x80:
        end -= 1
    return end


def visible(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def last_lines(path: Path, count: int = 20) -> list[str]:
    """The last lines of a log, without reading a long one whole; empty when there is none. Of a
    long line its end alone.
    """
    try:
        with open_regular(path) as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            lines = log.read(TAIL_BYTES).rstrip(b"\n").split(b"\n")[-count:]
    except OSError:
        return []
    return [
        line if len(line) <= SHOWN_CHARACTERS else f"... {line[-SHOWN_CHARACTERS:]}"
        for line in map(visible, lines)
        if line
    ]
