"""Checks that the MPI library that each rank reports is the requested one."""

import os
import re
import stat
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from hvscale.core.errors import UntrustedError
from hvscale.core.run_folder import ReportedLibrary, RunFolder, RunRecord
from hvscale.launch import flavours
from hvscale.launch.supervision.init_marker import folder

# The names that libhvinit-marker gives them: one for each library that the rank's programs started.
REPORT = re.compile(r"rank-(\d{5,})\.library-[0-9a-f]{16}")
LONGEST_REPORT_BYTES = 32768
# run.json keeps this much of a library's text; MPICH's also lists its configure options.
TEXT_LINES, TEXT_CHARACTERS = 3, 300
LOOK_SECONDS = 1.0


class LibraryReports:
    """Collects the ranks' reports.

    `requested`: the flavour that the run was started with.
    """

    def __init__(self, run: Path, np: int, requested: str | None = None) -> None:
        self.run, self.np, self.requested = run, np, requested
        self._known: dict[str, int] = {}
        self._look_at = 0.0

    def new(self, ended: bool = False) -> list[ReportedLibrary] | None:
        """All reports, once every rank has reported or the job has `ended`.

        None before that, and if nothing is new.
        """
        now = time.monotonic()
        if now < self._look_at and not ended:
            return None
        self._look_at = now + LOOK_SECONDS
        found = self._files()
        if found == self._known or not (ended or len({*found.values()}) == self.np):
            return None
        self._known = found
        return read_reports(self.run, found, self.requested)

    def _files(self) -> dict[str, int]:
        """The rank of each report, by file name; none if the command has removed the folder."""
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = sorted(path.name for path in folder(self.run).iterdir())
        matches = map(REPORT.fullmatch, names)
        return {match[0]: int(match[1]) for match in matches if match and int(match[1]) < self.np}


def read_reports(run: Path, files: dict[str, int], requested: str | None = None) -> list[ReportedLibrary]:
    """One entry for each library; files that are no report or cannot be read are skipped."""
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, rank in files.items():
        report = read_report(folder(run) / name)
        if report is not None:
            ranks[report].append(rank)
    return [reported_library(*report, sorted(of_it), requested) for report, of_it in ranks.items()]


def read_report(path: Path) -> tuple[str, str] | None:
    """The library's file and text as a rank wrote them; None for anything else.

    Anyone who can write to the folder could have created the file.
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


def reported_library(file: str, text: str, ranks: list[int], requested: str | None = None) -> ReportedLibrary:
    flavour, version = flavours.recognize(text, requested) or ("unknown", "")
    lines = (" ".join(line.split()) for line in text.strip().splitlines()[:TEXT_LINES])
    return ReportedLibrary(
        flavour=flavour, version=version, text="\n".join(lines)[:TEXT_CHARACTERS], file=file, ranks=ranks
    )


def require_requested_library(record: RunRecord) -> None:
    """Raises UntrustedError if a rank reported another library than the requested one."""
    if text := record.library_difference:
        raise UntrustedError(text)


class LibraryCheck:
    """Checks during a run that its ranks run on the requested library.

    A measurement shows no figure before that. `confirmed`: all ranks reported that library, or
    there is no MPI. `reported`: their reports.
    """

    def __init__(self) -> None:
        self.confirmed = False
        self.reported: list[ReportedLibrary] = []

    def is_mismatch(self, run: RunFolder) -> bool:
        """Whether a rank reported another library, so that the run cannot be used."""
        if self.confirmed:
            return False
        record = run.read()
        # run.json has them when the run has ended, or if they differ.
        self.reported = (
            record.libraries_reported or LibraryReports(run.path, record.np, record.library.flavour).new() or []
        )
        if record.model_copy(update={"libraries_reported": self.reported}).library_difference:
            return True
        self.confirmed = bool(self.reported) or flavours.get(record.library.flavour).soname is None
        return False

    def label(self, library: str) -> str:
        """The library's name in a table.

        A layer over MPI, such as Horovod, is shown with that MPI.
        """
        mpi = [" ".join(one.text.partition("\n")[0].partition(",")[0].split()) for one in self.reported]
        return f"{library} ({mpi[0]})" if mpi and mpi[0] not in library else library
