"""Which MPI library each rank reports that it really runs on, and whether that is the one that was
asked for.
"""

import os
import re
import stat
import time
from collections import defaultdict
from pathlib import Path

from hvscale.core.errors import UntrustedError
from hvscale.core.run_folder import ReportedLibrary, RunFolder, RunRecord
from hvscale.launch import flavours
from hvscale.launch.supervision.init_marker import folder

# As libhvinit-marker names them: a rank has one for each library that its programs were started
# with.
REPORT = re.compile(r"rank-(\d{5,})\.library-[0-9a-f]{16}")
LONGEST_REPORT_BYTES = 32768
# What run.json keeps of a library's text: MPICH's also lists its configure options.
TEXT_LINES, TEXT_CHARACTERS = 3, 300
LOOK_SECONDS = 1.0


class LibraryReports:
    """Collects what the ranks of a run report, as they report it. `asked`: the flavour that the run
    was started with.
    """

    def __init__(self, run: Path, np: int, asked: str | None = None) -> None:
        self.run, self.np, self.asked = run, np, asked
        self._known: dict[str, int] = {}
        self._look_at = 0.0

    def new(self, ended: bool = False) -> list[ReportedLibrary] | None:
        """All that was reported, once every rank has or when the job has `ended`; None until then
        and where nothing is new.
        """
        now = time.monotonic()
        if now < self._look_at and not ended:
            return None
        self._look_at = now + LOOK_SECONDS
        found = self._files()
        if found == self._known or not (ended or len({*found.values()}) == self.np):
            return None
        self._known = found
        return read_reports(self.run, found, self.asked)

    def _files(self) -> dict[str, int]:
        """The ranks that wrote the reports, by file name."""
        matches = map(REPORT.fullmatch, sorted(path.name for path in folder(self.run).iterdir()))
        return {match[0]: int(match[1]) for match in matches if match and int(match[1]) < self.np}


def read_reports(run: Path, files: dict[str, int], asked: str | None = None) -> list[ReportedLibrary]:
    """One entry for each library; what is not a report, or cannot be read, is left out."""
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, rank in files.items():
        report = read_report(folder(run) / name)
        if report is not None:
            ranks[report].append(rank)
    return [reported_library(*report, sorted(of_it), asked) for report, of_it in ranks.items()]


def read_report(path: Path) -> tuple[str, str] | None:
    """The library's file and its text, as a rank wrote them; None for anything else: whoever may
    write into the folder could have put it there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            data = stream.read(LONGEST_REPORT_BYTES + 1)
        file, _, text = data.decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    printable = all(character.isprintable() or character in "\t\r\n" for character in file + text)
    return (file, text) if printable and text.strip() and len(data) <= LONGEST_REPORT_BYTES else None


def reported_library(file: str, text: str, ranks: list[int], asked: str | None = None) -> ReportedLibrary:
    flavour, version = flavours.recognize(text, asked) or ("unknown", "")
    lines = (" ".join(line.split()) for line in text.strip().splitlines()[:TEXT_LINES])
    return ReportedLibrary(
        flavour=flavour, version=version, text="\n".join(lines)[:TEXT_CHARACTERS], file=file, ranks=ranks
    )


def require_asked_library(record: RunRecord) -> None:
    """Raises UntrustedError when a rank reported another library than the one that was asked
    for.
    """
    if text := record.library_difference:
        raise UntrustedError(text)


class LibraryCheck:
    """Checks during a run whether its ranks run on the library that was asked for. A measurement
    shows no figure before that.

    `confirmed`: all ranks reported that one, or there is no MPI; `reported`: as they did.
    """

    def __init__(self) -> None:
        self.confirmed = False
        self.reported: list[ReportedLibrary] = []

    def is_mismatch(self, run: RunFolder) -> bool:
        """True when a rank reported another library: the run is then of no use."""
        if self.confirmed:
            return False
        record = run.read()
        # run.json has them at the end, or when they differ.
        self.reported = (
            record.libraries_reported or LibraryReports(run.path, record.np, record.library.flavour).new() or []
        )
        if record.model_copy(update={"libraries_reported": self.reported}).library_difference:
            return True
        self.confirmed = bool(self.reported) or flavours.get(record.library.flavour).soname is None
        return False

    def label(self, library: str) -> str:
        """What a rank calls its library, and where that is one over MPI, such as Horovod, the MPI
        that it runs on as well.
        """
        mpi = [" ".join(one.text.partition("\n")[0].partition(",")[0].split()) for one in self.reported]
        return f"{library} ({mpi[0]})" if mpi and mpi[0] not in library else library
