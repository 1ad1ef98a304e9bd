"""MVAPICH2 2.3 and MVAPICH2-GDR, started by Hydra, or by mpirun_rsh without Hydra.

They have MPICH's ABI.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library, ReportedSettings
from hvscale.launch.effective_settings import LaunchedJob
from hvscale.launch.flavours import CommandParts, Processes, RankVariables, Show, register
from hvscale.launch.job import Job
from hvscale.launch.mpi import hydra
from hvscale.launch.mpi.launcher import start_launcher

RSH_LAUNCHER = "mpirun_rsh"
GDR = "-GDR"
# Each rank's threads need all cores, not the one that MVAPICH2 would bind them to.
UNBOUND = {"MV2_ENABLE_AFFINITY": "0"}


PREFIX = "MV2_"
SHOW_SETTINGS = "MV2_SHOW_ENV_INFO"
LINE = re.compile(r"^\s*(MV2_\w+)\s*[:=]\s*(\S+)", re.MULTILINE)
LONGEST_LOG_BYTES = 1 << 20  # it prints the table at the start
# The lines of its table in MVAPICH2's sources: an empty one, the title, a rule, the rows, a rule.
TITLE, RULE, ROW = re.compile(r" MVAPICH2-\S+ Parameters"), re.compile(r"-{69}"), re.compile(r"\t.{31}: .*")


class PrintedSettings:
    """Reads the table of settings in effect that rank 0 prints on request."""

    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        return {SHOW_SETTINGS: "1"}

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        if not ended:
            return None
        try:
            with job.run.log(0).open("rb") as stream:
                settings = dict(LINE.findall(stream.read(LONGEST_LOG_BYTES).decode(errors="replace")))
        except OSError:
            return None
        requested = job.variables_with_prefix(PREFIX)
        # Its table is not complete, so a variable that is missing there may be in effect.
        not_applied = {
            name: f"{value} was requested, {settings[name]} is in effect"
            for name, value in requested.items()
            if name in settings and settings[name].lower() != value.lower()
        }
        return ReportedSettings(library=f"MVAPICH2 {job.library.version}", settings=settings, not_applied=not_applied)


class TableFilter:
    """Shows the ranks' output without the table of MV2_SHOW_ENV_INFO=1.

    Other lines between those of the table are shown.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._rules_to_come = 0
        self._empty_line = False  # not shown yet, because the table may follow

    def __call__(self, rank: int, line: str) -> None:
        if rank != 0:
            self._show(rank, line)
        elif TITLE.fullmatch(line):
            self._empty_line, self._rules_to_come = False, 2
        elif self._rules_to_come and RULE.fullmatch(line):
            self._rules_to_come -= 1
        elif not (self._rules_to_come and ROW.fullmatch(line)):
            if self._empty_line:
                self._show(rank, "")
            self._empty_line = line == ""
            if line:
                self._show(rank, line)


class MVAPICH2(hydra.HydraFlavour):
    name = "mvapich2"
    library_name = "MVAPICH2"
    help = "MVAPICH2 2.3 and MVAPICH2-GDR"
    rank_variables = (
        *hydra.HydraFlavour.rank_variables,
        RankVariables(
            "MVAPICH2's mpirun_rsh", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"
        ),
    )
    variable_prefixes = ("MV2_", "MVP_")
    split_devices_release = "MVAPICH2-GDR"
    settings_reader = PrintedSettings()

    def find(self, environment: dict[str, str]) -> Library:
        for name in (hydra.LAUNCHER, RSH_LAUNCHER):
            for launcher in hydra.launchers(environment, name):
                version = self.version_in(launcher.text)
                if version is not None:
                    # The library's text may leave out that it is the GDR release.
                    named = self.version_in(hydra.program_text(launcher.path, hydra.MPINAME, environment)) or ""
                    version = named if named.endswith(GDR) else version
                    device = device_in(launcher.text)
                    return Library(
                        flavour=self.name,
                        version=version,
                        launcher=str(launcher.path),
                        transport=device,
                        transports=[device] if device else [],
                    )
        raise RequestError(
            f"no MVAPICH2 in PATH (looked for {hydra.LAUNCHER} and {RSH_LAUNCHER} whose library is MVAPICH2's): load its "
            "module, add its bin folder to PATH, or type `make setup MPI=/its/folder`"
        )

    def version_in(self, text: str) -> str | None:
        """`2.3.7` or `2.3.7-GDR`: from mpiname's first line or MPI_Get_library_version."""
        match = re.search(rf"^\s*MVAPICH2({GDR})?\s+(?:Version\s*:\s*)?(\d[\w.]*)", text, re.MULTILINE)
        return f"{match[2]}{match[1] or ''}" if match else None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        return {**UNBOUND, **hydra.with_own_library(environment, Path(library.launcher or ""))}

    def split_devices_variable(self, library: Library) -> str | None:
        """Only the GDR release has its own list of devices."""
        return "MV2_VISIBLE_DEVICES" if library.version.endswith(GDR) else None

    def hide_report(self, environment: Mapping[str, str], show: Show) -> Show:
        return show if SHOW_SETTINGS in environment else TableFilter(show)

    def command_line(
        self, np: int, command: list[str], variables: Mapping[str, str], library: Library
    ) -> CommandParts | None:
        """mpiexec.hydra's command, or mpirun_rsh's, which takes NAME=VALUE before the program."""
        launcher = library.launcher or RSH_LAUNCHER
        if not launcher.endswith(RSH_LAUNCHER):
            return super().command_line(np, command, variables, library)
        settings = [[f"{name}={value}"] for name, value in variables.items()]
        return [[launcher, "-np", str(np), "-hostfile", "HOSTFILE"], *settings, command]

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        yield [start_launcher(arguments(job, rank_program, library), {**hydra.defaults(job), **job.environment}, job)]


def device_in(text: str) -> str:
    """`ch3:mrail` and so on, which the build determines; empty if unknown."""
    match = re.search(r"\bch\d:[\w:.-]+", text)
    return match[0] if match else ""


def arguments(job: Job, rank_program: list[str], library: Library) -> list[str]:
    """Hydra's command line, or mpirun_rsh's.

    mpirun_rsh takes a host for each rank, and passes its environment on when told to.
    """
    launcher = Path(library.launcher or RSH_LAUNCHER)
    if launcher.name != RSH_LAUNCHER:
        return hydra.arguments(job, rank_program, library)
    if not job.nodes.without_agents:
        raise RequestError(f"{launcher} starts ranks on this machine only: add MVAPICH2's mpiexec.hydra to PATH")
    return [str(launcher), "-export-all", "-np", str(job.np), *["localhost"] * job.np, *rank_program]


register(MVAPICH2())
