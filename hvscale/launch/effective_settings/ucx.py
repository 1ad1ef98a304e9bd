"""UCX warns of each variable that it does not know, when it starts."""

import os
import re
from pathlib import Path

from hvscale.core.run_folder import ReportedSettings
from hvscale.launch.effective_settings import LaunchedJob, register

PREFIX = "UCX_"
UNUSED = re.compile(rb"UCX\s+WARN\s+unused environment variables?: ([^\n]*)")
LONGEST_LOG_BYTES = 1 << 20  # it prints its warnings when a rank starts


class UCX:
    def __init__(self) -> None:
        self._read_bytes: dict[Path, int] = {}  # of each log
        self._warned_of = b""

    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        return {}

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        requested = job.variables_with_prefix(PREFIX)
        if not requested:
            return None
        for log in job.run.logs.glob("rank-*.log"):
            self._read_new_lines(log, ended)
        unused = [name for name in requested if re.search(rb"\b%s\b" % os.fsencode(name), self._warned_of)]
        if not unused and not ended:
            return None
        return ReportedSettings(
            library="UCX", settings={}, not_applied=dict.fromkeys(unused, "UCX has no such variable")
        )

    def _read_new_lines(self, log: Path, ended: bool) -> None:
        """Note the warnings in the lines since the last call; an unfinished one is read again."""
        start = self._read_bytes.get(log, 0)
        if start == LONGEST_LOG_BYTES:
            return
        with log.open("rb") as stream:
            stream.seek(start)
            new = stream.read(LONGEST_LOG_BYTES - start)
        is_last = ended or start + len(new) == LONGEST_LOG_BYTES
        new = new if is_last else new[: new.rfind(b"\n") + 1]
        self._warned_of += b" ".join([b"", *UNUSED.findall(new)])
        self._read_bytes[log] = start + len(new)


register("ucx", UCX())
