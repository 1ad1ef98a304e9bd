"""Open MPI 4 and 5, started by their mpirun."""

import os
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from hvscale.core.errors import RequestError
from hvscale.core.host import available_cores
from hvscale.core.run_folder import Library, ReportedSettings
from hvscale.launch.effective_settings import LaunchedJob
from hvscale.launch.flavours import LIBRARY_DECIDES, CommandParts, Flavour, Processes, RankVariables, register
from hvscale.launch.job import Job
from hvscale.launch.mpi.launcher import start_launcher, uses_loopback_only, with_loopback_library
from hvscale.launch.mpi.mpi_library import for_mpi4py, library_version, program_output

PML = "OMPI_MCA_pml"
# Ranks connect over the interfaces named here, so they must listen there.
TCP_INTERFACES = "OMPI_MCA_btl_tcp_if_include"
TCP_INTERFACE_VARIABLES = (TCP_INTERFACES, "OMPI_MCA_btl_tcp_if_exclude")
BTL, WITHOUT_OFI = "OMPI_MCA_btl", "^ofi"
# pml components that only carry messages for others.
NOT_A_TRANSPORT = ("monitoring", "v")
# With --map-by, its launcher applies no word of a binding policy except --bind-to.
BINDING = "PRTE_MCA_hwloc_default_binding_policy"
# Both releases refuse root unless both are set; a container's only user is often root.
ROOT_ALLOWED = {
    f"{name}_ALLOW_RUN_AS_ROOT{confirm}": "1"
    for name in ("OMPI", "PRTE")  # mpirun, and Open MPI 5's daemons
    for confirm in ("", "_CONFIRM")
}


PREFIX = "OMPI_MCA_"
REPORT = "openmpi.txt"
LINE = re.compile(r"^(\w+)=(.*) \((\w+)\)$", re.MULTILINE)
# For ompi_info: UCX spins for 40 ms while it hooks mmap and its like.
NO_HOOKS = {"UCX_MEM_MMAP_HOOK_MODE": "none"}
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TRUE, FALSE = ("1", "t", "true", "enabled", "yes", "y"), ("0", "f", "false", "disabled", "no", "n")
SETTLED_SECONDS = 0.5  # rank 0 writes the file in one go; after this time it is complete


class ParameterReport:
    """Reads Open MPI's file of the parameters set from outside, with the values that it uses."""

    def reporting_variables(self, job: LaunchedJob) -> dict[str, str]:
        return {
            f"{PREFIX}mpi_show_mca_params": "enviro,file",
            f"{PREFIX}mpi_show_mca_params_file": str(job.folder / REPORT),
        }

    def read(self, job: LaunchedJob, ended: bool) -> ReportedSettings | None:
        report = job.folder / REPORT
        try:
            if not ended and time.time() - report.stat().st_mtime < SETTLED_SECONDS:
                return None
            text = report.read_text(errors="replace")
        except OSError:
            return None
        settings = {name: value for name, value, _ in LINE.findall(text) if not name.startswith("mpi_show_mca_params")}
        requested = {name.removeprefix(PREFIX): value for name, value in job.variables_with_prefix(PREFIX).items()}
        requested = {name: value for name, value in requested.items() if not name.startswith("mpi_show_mca_params")}
        doubtful = [name for name, value in requested.items() if not is_same_value(value, settings.get(name))]
        known = parameters(job) if doubtful else {}
        not_applied = {}
        for name in doubtful:
            parameter = known.get(name)
            if name not in settings and parameter is not None and is_same_value(requested[name], parameter.value):
                # Read by a component that reports elsewhere, such as UCX's.
                settings[name] = parameter.value
            elif (
                why := mismatch(requested[name], settings.get(name), parameter if known else Parameter())
            ) is not None:
                not_applied[PREFIX + name] = why
        return ReportedSettings(library=f"Open MPI {job.library.version}", settings=settings, not_applied=not_applied)


class OpenMPI(Flavour):
    name = "openmpi"
    library_name = "Open MPI"
    help = "Open MPI 4 and 5"
    rank_variables = (
        RankVariables(
            "Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"
        ),
    )
    soname = "libmpi.so.40"
    setup_command = "make setup"
    transports_help = "ob1, ucx or cm"
    variable_prefixes = ("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
    binding_variable = BINDING
    layers = frozenset({"ucx"})
    root_variables: ClassVar = ROOT_ALLOWED
    report_variables: ClassVar = {"OMPI_MCA_pml_base_verbose": "10"}
    transport_pattern = re.compile(r"select: component (\w+) selected")
    # Open MPI 5 names a session folder after the process's number. Where a killed process with the
    # same number left one, mpirun or a daemon cannot listen. The daemon's message is lost; its exit
    # status means an error that was already printed. After a retry the number differs.
    transient_failure = (
        re.compile(rb"listener thread failed to start|Daemon exit status: 213\b"),
        "it or a node's daemon cannot listen: probably a killed job left its session folder (`hvscale cleanup` on each "
        "node removes it)",
    )
    settings_reader = ParameterReport()
    supports_horovodrun = True
    srun_mpi = "pmix"

    def find(self, environment: dict[str, str]) -> Library:
        mpirun = shutil.which("mpirun", path=environment.get("PATH", os.defpath))
        if mpirun is None:
            raise RequestError("no mpirun in PATH: run `make setup`, or add your Open MPI's bin folder to PATH")
        try:
            banner = subprocess.run(
                [mpirun, "--version"], env=environment, capture_output=True, text=True, timeout=30
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise RequestError(f"{mpirun} does not start ({error}): reinstall Open MPI") from error
        match = re.search(r"\(Open MPI\)\s+(\d+)\.(\S+)", banner)
        if match is None:
            first = (banner.splitlines() or ["nothing"])[0]
            raise RequestError(
                f"{mpirun} is not Open MPI's (it prints: {first}): put Open MPI's bin folder first in PATH"
            )
        if int(match[1]) < 4:
            raise RequestError(f"{mpirun} is Open MPI {match[1]}.{match[2]}; 4 or later is required")
        return Library(
            flavour=self.name,
            version=f"{match[1]}.{match[2]}",
            launcher=mpirun,
            transport=environment.get(PML)
            or LIBRARY_DECIDES,  # ucx or cm if they find a network they support, else ob1
        )

    def transports(self, library: Library, environment: dict[str, str]) -> list[str]:
        """The pml components, from the ompi_info beside its mpirun; empty without it."""
        found = re.findall(r"^mca:pml:(\w+):version", ompi_info(library, environment), re.MULTILINE)
        return [name for name in dict.fromkeys(found) if name not in NOT_A_TRANSPORT]

    def version_in(self, text: str) -> str | None:
        match = re.search(r"Open MPI v(\d[^\s,]*),", text)
        return match[1] if match else None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        """Set the pml by name if one was chosen.

        A rank then fails if it cannot use that pml, and does not fall back silently.
        """
        environment = for_mpi4py(environment, Path(library.launcher or ""), self.soname)
        if library.transport == LIBRARY_DECIDES:
            return environment
        # By default, pml ucx supports only its own networks, not shared memory or TCP.
        anywhere = {f"{PML}_ucx_tls": "any", f"{PML}_ucx_devices": "any"} if library.transport == "ucx" else {}
        return {**anywhere, **environment, PML: library.transport}

    def mismatched_release(self, file: Path | None, library: Library) -> str | None:
        """Open MPI 4 and 5 share a soname, but one's ranks do not run under the other's mpirun."""
        prefix = Path(library.launcher or "").resolve().parent.parent
        if file is None or prefix in file.resolve().parents:
            return None
        version = self.version_in(library_version(file, {}))
        same = version is None or version.partition(".")[0] == library.version.partition(".")[0]
        return None if same else f"Open MPI {version}"

    def command_line(
        self, np: int, command: list[str], variables: Mapping[str, str], library: Library
    ) -> CommandParts | None:
        """mpirun's command: MCA parameters as --mca, other variables as -x."""
        settings = [
            ["--mca", name.removeprefix(PREFIX), value] if name.startswith(PREFIX) else ["-x", f"{name}={value}"]
            for name, value in variables.items()
            if name != BINDING
        ]
        launcher = library.launcher or "mpirun"
        return [[launcher, "-np", str(np), *binding_options(variables, library)], *settings, command]

    def works_with_horovodrun(self, transport: str | None) -> bool:
        """Whether horovodrun can start it: its mpirun command always requests ob1."""
        return transport in (None, LIBRARY_DECIDES, "ob1")

    def horovodrun_options(self, variables: Mapping[str, str], library: Library) -> list[str]:
        """The binding, because Open MPI 5 rejects Horovod 0.28's own spelling."""
        return [f"--binding-args={' '.join(binding_options(variables, library))}"]

    @contextmanager
    def start(self, job: Job, rank_program: list[str], library: Library) -> Iterator[Processes]:
        environment = {
            **defaults(job, library),
            **job.environment,
            **(self.root_variables if os.geteuid() == 0 else {}),
        }
        words = arguments(job, rank_program, library)
        yield [
            start_launcher(
                words, with_loopback_library(job, environment, interface_variables=TCP_INTERFACE_VARIABLES), job
            )
        ]


def arguments(job: Job, rank_program: list[str], library: Library) -> list[str]:
    """mpirun's command line: unbound ranks, because the framework's threads need cores.

    Any number of ranks on any number of cores. A binding policy in the job's environment applies.

    Open MPI 5 (PRRTE) and 4 (ORTE) share these spellings; 4 refuses more ranks than slots without
    --oversubscribe.
    """
    launcher = library.launcher or "mpirun"
    return [
        launcher,
        "-np",
        str(job.np),
        *binding_options(job.environment, library),
        *node_options(job, library),
        *rank_program,
    ]


def binding_options(environment: Mapping[str, str], library: Library) -> list[str]:
    """The options that bind the ranks or leave them unbound, and allow more ranks than cores."""
    several = (
        ["--map-by", "slot:OVERSUBSCRIBE"]
        if library.version.startswith("5")
        else ["--map-by", "slot", "--oversubscribe"]
    )
    return ["--bind-to", environment.get(BINDING, "none"), *several]


def node_options(job: Job, library: Library) -> list[str]:
    """The options that spread the ranks over the job's nodes and pass the job's environment on."""
    if job.nodes.without_agents:
        return []
    agent = str(job.nodes.write_agent(job.run))
    # A daemon in a node has no agent to start another daemon. It stays with its own agent, because
    # srun ends processes that leave it.
    parameters = (
        {"plm": "ssh", "plm_ssh_agent": agent, "plm_ssh_no_tree_spawn": "1", "prte_leave_session_attached": "1"}
        if library.version.startswith("5")
        else {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": "1", "orte_leave_session_attached": "1"}
    )
    option = "--prtemca" if library.version.startswith("5") else "--mca"
    remote_start = [word for name, value in parameters.items() for word in (option, name, value)]
    named = [word for name in sorted(job.environment) for word in ("-x", name)]
    return ["--host", job.nodes.hosts, *remote_start, *named]


def defaults(job: Job, library: Library) -> dict[str, str]:
    """MCA parameters that follow from the ranks' nodes; the user's from --env take precedence."""
    return {**without_btl_ofi(job, library), **node_parameters(job)}


def without_btl_ofi(job: Job, library: Library) -> dict[str, str]:
    """Leave out btl/ofi on one host: a rank sleeps for a second when it closes that component.

    By default it serves one-sided communication over libfabric (btl_ofi_component.c of Open MPI
    5.0). Not if a file of parameters sets the components: a variable would take precedence.
    """
    if not job.nodes.without_agents:
        return {}
    listed = ompi_info(library, job.environment, "--param", "btl", "all", "--level", "9")
    return {BTL: WITHOUT_OFI} if "mca:btl:base:param:btl:source:default\n" in listed else {}


def node_parameters(job: Job) -> dict[str, str]:
    """The interfaces over which TCP connects the ranks, and whether waiting ranks yield."""
    if job.nodes.without_agents:
        # Not for UCX's connections, over which a rank reaches one that it spawns.
        return (
            {TCP_INTERFACES: job.nodes.nodes[0].interface}
            if uses_loopback_only(job, interface_variables=TCP_INTERFACE_VARIABLES)
            else {}
        )
    # Nodes that share an address would otherwise choose among their machine's other addresses, and
    # not recognize a caller. Not as a network: Open MPI takes every interface for one of a single
    # address.
    network = job.nodes.nodes[0].interface if job.nodes.share_an_address else job.nodes.subnet
    # mpirun counts this machine's cores once for each node on it. Its ranks then spin while the
    # rank they wait for has no core.
    crowded = (
        {"OMPI_MCA_mpi_yield_when_idle": "true"} if job.nodes.on_this_machine and job.np > available_cores() else {}
    )
    return {**({TCP_INTERFACES: network} if network else {}), **crowded}


def is_same_value(requested: str, used: str | None) -> bool:
    """Whether the value that Open MPI prints means the requested one."""
    if used is None:
        return False
    words, shown = requested.strip().lower(), used.strip().lower()
    if words == shown or any(words in spellings and shown in spellings for spellings in (TRUE, FALSE)):
        return True
    number = re.fullmatch(r"(\d+)([kmg]?)b?", words)
    return number is not None and shown == str(int(number[1]) * UNITS.get(number[2], 1))


@dataclass
class Parameter:
    """A parameter in ompi_info: its value in the job's environment, and its value names
    by number.
    """

    value: str = ""
    names: dict[str, str] = field(default_factory=dict)


def mismatch(requested: str, used: str | None, parameter: Parameter | None) -> str | None:
    """Why the value did not take effect; None if it did.

    Values of a list are printed by name, and may be requested by number.
    """
    if used is None:
        return "Open MPI has no such parameter" if parameter is None else "Open MPI has not read it in this job"
    named = parameter is not None and parameter.names.get(requested) == used
    return None if named else f"{requested} was requested, {used} is in effect"


def parameters(job: LaunchedJob) -> dict[str, Parameter]:
    """Every parameter that ompi_info lists; empty without ompi_info."""
    return parse(ompi_info(job.library, job.environment, "--all"))


def ompi_info(library: Library, environment: Mapping[str, str], *options: str) -> str:
    """What the ompi_info beside its mpirun prints with these options; empty without it."""
    program = str(Path(library.launcher or "mpirun").parent / "ompi_info")
    return program_output([program, "--parsable", *options], {**environment, **NO_HOOKS})


def parse(listed: str) -> dict[str, Parameter]:
    """The parameters in the output of `ompi_info --all --parsable`."""
    found: defaultdict[str, Parameter] = defaultdict(Parameter)
    for name, kind, rest in re.findall(r"^mca:\w+:\w+:param:(\w+):(\w+):(.*)$", listed, re.MULTILINE):
        if kind == "value":
            found[name].value = rest.strip('"')  # ompi_info quotes values with a colon
        elif kind == "enumerator":
            number, _, word = rest.removeprefix("value:").partition(":")
            found[name].names[number] = word
    return dict(found)


register(OpenMPI())
