"""MPICH 4 and 5, started by Hydra."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library, ReportedSettings
from hvscale.launch import flavours
from hvscale.launch.effective_settings import LaunchedJob
from hvscale.launch.flavours import Processes, register
from hvscale.launch.job import Job
from hvscale.launch.mpi import horovod_build, hydra, mpi_library
from hvscale.launch.mpi.launcher import start_launcher, uses_loopback_only, with_loopback_library

NETMOD = "MPIR_CVAR_CH4_NETMOD"
SINGLE_COPY = "MPIR_CVAR_CH4_CMA_ENABLE"
OLDEST_RELEASE = 4


PREFIX = "MPIR_CVAR_"
# The handles in MPICH's ABI of the types of its control variables, and their ctypes.
ASK_LIBRARY = """
import ctypes, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # MPICH and UCX print to stdout, too
types = {0x4c000405: ctypes.c_int, 0x4c000406: ctypes.c_uint, 0x4c000808: ctypes.c_ulong, 0x4c000819: ctypes.c_ulonglong,
         0x4c00080b: ctypes.c_double}
mpi = ctypes.CDLL(sys.argv[1])
integer, byref = ctypes.c_int, ctypes.byref
if mpi.MPI_T_init_thread(0, byref(integer())) != 0 or mpi.MPI_Init(None, None) != 0:
    sys.exit(1)
count, found = integer(), {}
mpi.MPI_T_cvar_get_num(byref(count))
for index in range(count.value):
    name, length, verbosity, kind, enumeration = ctypes.create_string_buffer(256), integer(256), integer(), integer(), ctypes.c_void_p()
    binding, scope, none = integer(), integer(), integer(0)
    mpi.MPI_T_cvar_get_info(index, name, byref(length), byref(verbosity), byref(kind), byref(enumeration), None, byref(none),
                            byref(binding), byref(scope))
    handle, items = ctypes.c_void_p(), integer()
    if mpi.MPI_T_cvar_handle_alloc(index, None, byref(handle), byref(items)) != 0:
        continue
    if kind.value in types:
        values = (types[kind.value] * max(items.value, 1))()
        mpi.MPI_T_cvar_read(handle, values)
        found[name.value.decode()] = ",".join(map(str, values[:items.value]))
    else:
        text = ctypes.create_string_buffer(max(items.value, 1) + 4096)
        mpi.MPI_T_cvar_read(handle, text)
        found[name.value.decode()] = text.value.decode(errors="replace")
print(json.dumps(found), file=answer, flush=True)
mpi.MPI_Finalize()
"""
ASK_SECONDS = 30
SWITCHES = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}


class ControlVariableReport:
    """Reads MPICH's control variables through MPI_T, in a process with the job's variables."""

    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        return {}

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        requested = job.variables_with_prefix(PREFIX)
        if not requested:
            return None
        # Without an answer nothing is reported: to ask again would disturb the ranks.
        used = control_variables(job)
        not_applied = {
            name: why
            for name, value in requested.items()
            if used and (why := mismatch(value, used.get(name))) is not None
        }
        settings = {name: used[name] for name in requested if used.get(name)}
        return ReportedSettings(library=f"MPICH {job.library.version}", settings=settings, not_applied=not_applied)


def control_variables(job: LaunchedJob) -> dict[str, str]:
    """The control variables of the job's MPICH, by name; empty if it does not answer."""
    library = mpi_library.library_of_launcher(Path(job.library.launcher or "/"), hydra.SONAME, job.environment)
    if library is None:
        return {}
    command = [sys.executable, "-I", "-S", "-c", ASK_LIBRARY, str(library)]
    # One process needs no network, and other interfaces may vanish while MPI starts.
    environment = {**variables_on_one_host(job.environment, "lo"), **job.environment}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ASK_SECONDS)
        values: dict[str, str] = json.loads(result.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return values


def mismatch(requested: str, used: str | None) -> str | None:
    if used is None:
        return "MPICH has no such variable"
    # MPI_T returns every string as empty.
    if used == "":
        return None
    # Enumerated values are reported as numbers.
    by_number = used.lstrip("-").isdigit() and not requested.lstrip("-").isdigit() and requested.lower() not in SWITCHES
    same = by_number or used == SWITCHES.get(requested.lower(), requested)
    return None if same else f"{requested} was requested, {used} is in effect"


class MPICH(hydra.HydraFlavour):
    name = "mpich"
    library_name = "MPICH"
    help = "MPICH 4 and 5"
    layers = frozenset({"ucx"})
    transports_help = "ucx or ofi"
    variable_prefixes = ("MPICH_", "MPIR_CVAR_")
    report_variables: ClassVar = {"MPIR_CVAR_DEBUG_SUMMARY": "1"}
    transport_pattern = re.compile(r"^==== (\w+) netmod", re.MULTILINE)
    settings_reader = ControlVariableReport()
    supports_horovodrun = True

    def find(self, environment: dict[str, str]) -> Library:
        others = []
        for launcher in hydra.launchers(environment):
            version = self.version_in(launcher.text)
            if version is None:
                others.append(f"{launcher.path} is {flavours.describe(launcher.text)}")
            elif int(version.partition(".")[0]) < OLDEST_RELEASE:
                others.append(f"{launcher.path} is MPICH {version}: {OLDEST_RELEASE} or later is required")
            else:
                transports = transports_in(launcher.text)
                chosen = environment.get(NETMOD) or (transports[0] if transports else "")
                return Library(
                    flavour=self.name,
                    version=version,
                    launcher=str(launcher.path),
                    transport=chosen,
                    transports=transports,
                )
        found = f" ({'; '.join(others)})" if others else ""
        raise RequestError(
            f"no MPICH in PATH{found}: run `make setup MPI=mpich`, or add your MPICH's bin folder to PATH"
        )

    def version_in(self, text: str) -> str | None:
        match = re.search(r"^\s*MPICH Version:\s*(\d\S*)", text, re.MULTILINE)
        return match[1] if match else None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        """Set the netmod by name; without it, MPICH takes the first one that it was built with.

        Programs of hvscale's environments find their own MPICH. For another MPICH, its library is
        put first.
        """
        launcher = Path(library.launcher or "")
        if launcher.parent.parent in horovod_build.environments_of_clone():
            environment = mpi_library.for_mpi4py(environment, launcher, self.soname)
        else:
            environment = hydra.with_own_library(environment, launcher)
        return {**environment, NETMOD: library.transport} if library.transport in library.transports else environment

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        environment = {**hydra.defaults(job), **defaults(job), **loopback_variables(job), **job.environment}
        launcher, *words = hydra.arguments(job, rank_program, library)
        # Otherwise its proxy connects to the address of the host's name.
        words = ["-localhost", job.nodes.controller, *words] if uses_loopback_only(job) else words
        yield [start_launcher([launcher, *words], with_loopback_library(job, environment), job)]


def defaults(job: Job) -> dict[str, str]:
    """Disable single copy if ranks may not read each other's memory.

    MPICH does not check, and the job would abort, for example in most containers.
    """
    return {} if job.nodes.single_copy() else {SINGLE_COPY: "0"}


def loopback_variables(job: Job) -> dict[str, str]:
    """Variables that keep ranks on one host to the loopback interface."""
    if not uses_loopback_only(job):
        return {}
    return variables_on_one_host(job.environment, job.nodes.nodes[0].interface)


def variables_on_one_host(environment: Mapping[str, str], interface: str) -> dict[str, str]:
    """Variables that keep libfabric's TCP to an interface, and UCX from the network.

    Each provider of libfabric has its own, and MPICH may choose `sockets` over `tcp`.
    """
    # UCX would listen on every interface, and MPICH does not need its TCP on one host.
    ucx = {} if "UCX_NET_DEVICES" in environment else {"UCX_TLS": "^tcp"}
    return {**ucx, "FI_TCP_IFACE": interface, "FI_SOCKETS_IFACE": interface}


def transports_in(text: str) -> list[str]:
    """The netmods of a ch4 device, the default first, in the output of `mpichversion`.

    Empty for ch3, which offers no choice.
    """
    match = re.search(r"^\s*MPICH Device:\s*ch4:(.+)$", text, re.MULTILINE)
    return re.split(r"[\s,]+", match[1].strip()) if match else []


register(MPICH())
