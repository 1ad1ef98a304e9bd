"""Follows the ranks' log files while the job runs."""

from collections.abc import Callable, Iterator
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.files import open_regular
from hvscale.core.run_folder import RunFolder
from hvscale.core.terminal import without_sequences

TAIL_BYTES = 64 * 1024
# Longer lines are split, so that a rank cannot fill this process's memory.
PIECE_BYTES = 64 * 1024
# Bytes to read from one log before turning to the others and to Ctrl-C.
READ_BYTES = 4 * 1024 * 1024
# The longest line in an error message.
SHOWN_CHARACTERS = 2000


class RankOutput:
    r"""Passes every whole line that a rank writes to `show(rank, line)`.

    After `\r`, only what a terminal would still show is kept. A line of more than PIECE_BYTES is
    passed in pieces of that size; the log file is not changed.
    """

    def __init__(self, run: RunFolder, np: int, show: Callable[[int, str], None]) -> None:
        self.logs = {rank: run.log(rank) for rank in range(np)}
        self.read = dict.fromkeys(self.logs, 0)
        self.unfinished = dict.fromkeys(self.logs, b"")
        self.show = show

    def poll(self) -> None:
        """Show new output, at most READ_BYTES of each rank."""
        for rank in self.logs:
            self._show_new(rank, READ_BYTES)

    def finish(self) -> None:
        """Show all remaining output."""
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


def lines_of(path: Path, *, unfinished: bool = True) -> Iterator[str]:
    """The lines of a log as RankOutput shows them; none if there is no log.

    `unfinished`: also a last line without a newline, which a running rank may have cut anywhere.
    Raises RequestError if the log cannot be read.
    """
    rest = b""
    try:
        with open_regular(path) as log:
            while new := log.read(PIECE_BYTES):
                lines, rest = split_lines(rest + new)
                yield from map(visible, lines)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    if unfinished and rest:
        yield visible(rest)


def uncoloured_lines_of(path: Path, *, unfinished: bool = True) -> Iterator[str]:
    """As `lines_of`, without colours, which may stand between a word and its number."""
    for line in lines_of(path, unfinished=unfinished):
        yield without_sequences(line)


def split_lines(text: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines, and the unfinished rest; both split if too long.

    The pieces do not depend on where reading stopped.
    """
    *whole, rest = text.split(b"\n")
    lines = []
    for line in whole:
        pieces, end = split_long_line(line)
        lines += [*pieces, end]
    pieces, rest = split_long_line(rest)
    return [*lines, *pieces], rest


def split_long_line(line: bytes) -> tuple[list[bytes], bytes]:
    r"""The pieces of a line that is too long, and the rest.

    The rest has at most PIECE_BYTES, and keeps a final `\r`, which applies to what comes next.
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
    """The end of a piece, never inside a multi-byte character."""
    end = PIECE_BYTES
    while end > PIECE_BYTES - 4 and line[end] & 0xC0 == 0x80:
        end -= 1
    return end


def visible(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def last_lines(path: Path, count: int = 20) -> list[str]:
    """The last lines of a log, read from its end; empty if there is none.

    A long line is cut to its end.
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
