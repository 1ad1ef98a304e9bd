"""The newest lines of the ranks' logs, and those that look like warnings."""

import os
import re
from collections import defaultdict, deque
from pathlib import Path

from hvscale.core.files import open_regular
from hvscale.core.run_folder import RunFolder
from hvscale.core.terminal import without_sequences
from hvscale.profiling.watch.document import LogLine

TAIL_BYTES = 1 << 14  # of one log in one sample; the view shows a few lines
LOGS_READ = 32  # in one sample: those that changed last
LONGEST_CHARACTERS = 500
LINES_KEPT, WARNINGS_KEPT = 12, 6
WARNING = re.compile(r"\b(warn|error|fatal|abort|hvprof:|killed|traceback)", re.IGNORECASE)
RANK_LOG = re.compile(r"rank-(\d{5,})\.log")
LAUNCHER_LOG = "launcher.log"


class LogTail:
    """Follows the logs of a run; `poll` reads what is new, within bounds."""

    def __init__(self, run: RunFolder) -> None:
        self.folder = run.logs
        self.read: dict[str, int] = {}  # bytes, by name
        self.lines: deque[LogLine] = deque(maxlen=LINES_KEPT)
        self.warnings: deque[LogLine] = deque(maxlen=WARNINGS_KEPT)

    def poll(self) -> None:
        """Read the new lines of the logs that changed last. Raises OSError if it cannot."""
        writers: defaultdict[str, list[int]] = defaultdict(list)
        for _, name, size in sorted(self._changed())[-LOGS_READ:]:
            rank = RANK_LOG.fullmatch(name)
            for text in self._new_lines(name, size):
                writers[text] += [int(rank[1])] if rank is not None else []
        for text, ranks in writers.items():
            line = LogLine(ranks=sorted(set(ranks)), text=text)
            self.lines.append(line)
            if WARNING.search(text):
                self.warnings.append(line)

    def _changed(self) -> list[tuple[int, str, int]]:
        """Time of the last change, name and size of each log that grew."""
        found = []
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if not RANK_LOG.fullmatch(entry.name) and entry.name != LAUNCHER_LOG:
                        continue
                    status = entry.stat()
                    if status.st_size > self.read.get(entry.name, 0):
                        found.append((status.st_mtime_ns, entry.name, status.st_size))
        except FileNotFoundError:
            return []
        # Logs beyond the limit are not read later: by then their lines are not the newest.
        for _, name, size in sorted(found)[:-LOGS_READ]:
            self.read[name] = size
        return found

    def _new_lines(self, name: str, size: int) -> list[str]:
        known = self.read.get(name, 0)
        start = max(known, size - TAIL_BYTES)
        try:
            with open_regular(Path(self.folder, name)) as stream:
                text = os.pread(stream.fileno(), size - start, start)
        except OSError:  # removed, or not a regular file
            return []
        whole, newline, rest = text.rpartition(b"\n")
        if len(rest) >= TAIL_BYTES:  # a line without an end
            whole, rest = rest, b""
        elif not newline:
            return []
        self.read[name] = start + len(text) - len(rest)
        lines = whole.split(b"\n")
        if start > known:
            lines = lines[1:]  # its beginning was not read
        return [shown for line in lines if (shown := _visible(line))]


def _visible(line: bytes) -> str:
    r"""What a terminal would still show after each `\r`, without colours, within a bound."""
    shown = line.rstrip(b"\r ").rpartition(b"\r")[2].decode(errors="replace")
    return without_sequences(shown)[:LONGEST_CHARACTERS].rstrip()
