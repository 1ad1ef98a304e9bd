"""Horovod ignores variables that it does not know: those whose names its files do not contain."""

import re
from pathlib import Path

from hvscale.core.run_folder import ReportedSettings
from hvscale.launch.effective_settings import LaunchedJob, register
from hvscale.launch.mpi.horovod_build import horovod_library

PREFIX = "HOROVOD_"


class Horovod:
    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        return {}

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        requested = job.variables_with_prefix(PREFIX)
        library = horovod_library(job.command, dict(job.environment)) if requested else None
        if library is None:
            return None
        known = names_in(library)
        unknown = [name for name in requested if name not in known]
        return ReportedSettings(
            library="Horovod", settings={}, not_applied=dict.fromkeys(unknown, "Horovod has no such variable")
        )


def names_in(library: Path) -> set[str]:
    """The variables named in Horovod's library and Python files."""
    package = library.parent.parent
    texts = [library.read_bytes(), *(path.read_bytes() for path in package.rglob("*.py"))]
    return {name.decode() for text in texts for name in re.findall(rb"HOROVOD_[A-Z0-9_]+", text)}


register("horovod", Horovod())
