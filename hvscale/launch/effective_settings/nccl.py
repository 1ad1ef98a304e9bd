"""NCCL logs each variable that it takes from the environment, in one file for each process."""

import re

from hvscale.core.run_folder import ReportedSettings
from hvscale.launch.effective_settings import LaunchedJob, register

PREFIX = "NCCL_"
SET = re.compile(r"\b(NCCL_\w+) set by environment to (.*?)\.?$", re.MULTILINE)
VERSION = re.compile(r"NCCL version (\S+)")
# Variables that control the log are not in it.
NOT_REPORTED = ("NCCL_DEBUG", "NCCL_PROFILER_PLUGIN")


class NCCL:
    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        if job.variables_with_prefix("NCCL_DEBUG"):
            return {}
        log = str(job.folder / "nccl-%h-%p.log")
        return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": log}

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        requested = [name for name in job.variables_with_prefix(PREFIX) if not name.startswith(NOT_REPORTED)]
        if not ended or job.variables_with_prefix("NCCL_DEBUG"):
            return None
        output = "".join(log.read_text(errors="replace") for log in sorted(job.folder.glob("nccl-*.log")))
        version = VERSION.search(output)
        if version is None:
            unused = dict.fromkeys(requested, "no rank used NCCL")
            return ReportedSettings(library="NCCL", settings={}, not_applied=unused) if requested else None
        settings = dict(SET.findall(output))
        not_applied = {name: "NCCL did not read it in this job" for name in requested if name not in settings}
        return ReportedSettings(library=f"NCCL {version[1]}", settings=settings, not_applied=not_applied)


register("nccl", NCCL())
