"""Remove control sequences from foreign text, such as names and ranks' output, for a terminal.

Only terminals obey control sequences; text to files and pipes is not changed.
"""

import re
from typing import TextIO

# All but tab and newline, and the characters that reverse the direction of writing.
CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
COLOUR = r"\x1b\[[0-9;:]*m"
# Control strings such as OSC (titles, clipboard, links), then CSI (cursor, erase, modes), then
# short escapes. Each is found in linear time.
SEQUENCE = r"\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ`-~]"
OF_RANKS = re.compile(f"({COLOUR})|({SEQUENCE})|{CONTROL}")
ALL = re.compile(CONTROL)
RESET = "\x1b[0m"


def printable(text: str, stream: TextIO) -> str:
    """Return a name or message for `stream`; on a terminal control characters are escaped."""
    return ALL.sub(_spelled, text) if stream.isatty() else text


def rank_line(line: str, stream: TextIO) -> str:
    """Return a line of a rank's output for `stream`; on a terminal only its colours are kept."""
    if not stream.isatty():
        return line
    shown = OF_RANKS.sub(lambda found: found[1] or ("" if found[2] else _spelled(found)), line)
    return shown + RESET if "\x1b" in shown else shown


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def without_sequences(text: str) -> str:
    """Return a line of output without its colours and other control sequences."""
    return OF_RANKS.sub(lambda found: "" if found[1] or found[2] else found[0], text)
