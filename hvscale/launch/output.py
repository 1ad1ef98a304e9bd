"""The ranks' log files, followed while the job runs."""

from collections.abc import Callable
from pathlib import Path

from hvscale.run_folder import RunFolder

TAIL_BYTES = 64 * 1024


class RankOutput:
    """Hands every whole line that a rank writes to `show(rank, line)`; `\\r` keeps what a terminal would leave standing."""

    def __init__(self, run: RunFolder, np: int, show: Callable[[int, str], None]) -> None:
        self.logs = {rank: run.log(rank) for rank in range(np)}
        self.read = dict.fromkeys(self.logs, 0)
        self.unfinished = dict.fromkeys(self.logs, b"")
        self.show = show

    def poll(self) -> None:
        for rank, path in self.logs.items():
            try:
                if path.stat().st_size == self.read[rank]:
                    continue
                with path.open("rb") as log:
                    log.seek(self.read[rank])
                    new = log.read()
            except FileNotFoundError:
                continue
            self.read[rank] += len(new)
            *lines, self.unfinished[rank] = (self.unfinished[rank] + new).split(b"\n")
            for line in lines:
                self.show(rank, visible(line))

    def finish(self) -> None:
        self.poll()
        for rank, rest in self.unfinished.items():
            if rest:
                self.show(rank, visible(rest))


def visible(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def last_lines(path: Path, count: int = 20) -> list[str]:
    """The last lines of a log, without reading a long one whole; empty when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            return [visible(line) for line in log.read().rstrip(b"\n").split(b"\n")[-count:] if line]
    except FileNotFoundError:
        return []
