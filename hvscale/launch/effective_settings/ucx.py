"""UCX warns of each variable that it does not know, when it starts."""

import os
import re

from hvscale.core.run_folder import ReportedSettings
from hvscale.launch.effective_settings import LaunchedJob, register

PREFIX = "UCX_"
UNUSED = re.compile(rb"UCX\s+WARN\s+unused environment variables?: ([^\n]*)")
LONGEST_LOG_BYTES = 1 << 20  # it prints its warnings when a rank starts


class UCX:
    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        return {}

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        requested = job.variables_with_prefix(PREFIX)
        if not requested:
            return None
        output = b""
        for log in sorted(job.run.logs.glob("rank-*.log")):
            with log.open("rb") as stream:
                output += b" ".join([b"", *UNUSED.findall(stream.read(LONGEST_LOG_BYTES))])
        unused = [name for name in requested if re.search(rb"\b%s\b" % os.fsencode(name), output)]
        if not unused and not ended:
            return None
        return ReportedSettings(
            library="UCX", settings={}, not_applied=dict.fromkeys(unused, "UCX has no such variable")
        )


register("ucx", UCX())
