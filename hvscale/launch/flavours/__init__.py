"""The flavours, which start ranks: the MPI libraries, and Gloo.

Each is a file in this folder that registers itself. Differences between flavours are attributes and
methods of `Flavour`. docs/how-to/extend.md shows how to add one.
"""

import os
import subprocess
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from re import Pattern
from typing import ClassVar

from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.run_folder import Library
from hvscale.launch.effective_settings import SettingsReader
from hvscale.launch.job import Job
from hvscale.launch.mpi.build_record import read_record
from hvscale.launch.mpi.mpi_library import library_version
from hvscale.launch.supervision.processes import NP_VARIABLE

DEFAULT = "openmpi"  # of an environment without a Horovod that the set-up built
LIBRARY_DECIDES = "auto"  # the transport if none was chosen

Processes = list[subprocess.Popen[bytes]]
Show = Callable[[int, str], None]
# The parts of a command line; each is shown on its own line.
CommandParts = list[list[str]]


@dataclass(frozen=True)
class RankVariables:
    """The environment variables in which a launcher gives a rank its place."""

    launcher: str  # in messages, such as "Open MPI's mpirun"
    rank: str
    size: str
    local_rank: str
    set_by_slurm: bool = False  # srun sets them too, for its own tasks, under any launcher


class Flavour(ABC):
    """A way to start ranks. A subclass sets the attributes without a default."""

    name: ClassVar[str]
    """Its name for --mpi and in run.json."""
    library_name: ClassVar[str]
    """The library's own name, such as "Open MPI"."""
    help: ClassVar[str]
    """A description in a few words, for the help of --mpi."""
    rank_variables: ClassVar[tuple[RankVariables, ...]]
    """Those of each launcher that it may come with; the first that is set applies."""

    soname: ClassVar[str | None] = None
    """The MPI library that its programs are linked to; None without MPI. Flavours may share one."""
    setup_command: ClassVar[str] = ""
    """The command that creates an environment with a Horovod for it; empty if there is none."""
    transports_help: ClassVar[str] = ""
    """Its usual transports, for the help of --transport; empty if it offers no choice."""
    variable_prefixes: ClassVar[tuple[str, ...]] = ()
    """Prefixes of variables that change how it communicates; a job gets them only by --env."""
    passed_variables: ClassVar[tuple[str, ...]] = ()
    """The caller's variables that its programs need; a job gets them without --env."""
    binding_variable: ClassVar[str | None] = None
    """The variable that binds ranks to cores."""
    report_variables: ClassVar[Mapping[str, str]] = {}
    """Variables that make the library print its transport when it is started alone."""
    transport_pattern: ClassVar[Pattern[str] | None] = None
    """Finds the transport in that output."""
    transient_failure: ClassVar[tuple[Pattern[bytes], str] | None] = None
    """Finds a transient failure in its launcher's output, and the failure in words. The job
    is retried.
    """
    split_devices_release: ClassVar[str] = ""
    """The release that has its own list of GPUs, for an error about --devices split."""
    settings_reader: ClassVar[SettingsReader | None] = None
    """Asks the library which settings it uses."""
    layers: ClassVar[frozenset[str]] = frozenset()
    """The communication libraries below it that have knobs, by the names of their knob
    libraries.
    """
    allreduce_algorithm: ClassVar[str | None] = None
    """That of all its all-reduces, None if it chooses one by the message's size."""
    root_variables: ClassVar[Mapping[str, str]] = {}
    """Variables without which its programs refuse to run as root, often a container's only user."""
    horovod_controller: ClassVar[str] = "mpi"
    """Its name for Horovod's option --controller."""
    supports_horovodrun: ClassVar[bool] = False
    """Whether Horovod's own launcher can start it."""
    reduce_scatter_in_horovod: ClassVar[bool] = True
    """Whether Horovod 0.28 has a reduce-scatter over it."""
    srun_mpi: ClassVar[str] = "pmi2"
    """The value of srun's --mpi with which its ranks connect."""

    @property
    def has_mpi(self) -> bool:
        return self.soname is not None

    @abstractmethod
    def find(self, environment: dict[str, str]) -> Library:
        """The installed library. Raises RequestError, with how to install it, if there is none."""

    @abstractmethod
    def start(self, job: Job, rank_program: list[str], library: Library) -> AbstractContextManager[Processes]:
        """Context: start np processes of `rank_program`; frees what they needed on exit.

        Gives the processes whose end is the job's end.
        """

    def transports(self, library: Library, environment: dict[str, str]) -> list[str]:
        """The transports that the library was built with, by its own names.

        Separate from `find`, because asking may take as long as a start.
        """
        return library.transports

    def version_in(self, text: str) -> str | None:
        """The version, if the text is about this flavour.

        `text` is from its programs or MPI_Get_library_version.
        """
        return None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        """The job's environment, adapted to this library.

        With it, ranks run unbound, over `library.transport`, on the launcher's own libmpi.
        """
        return environment

    def split_devices_variable(self, library: Library) -> str | None:
        """The variable that lists the library's own GPUs; None if it sees its process's GPUs."""
        return None

    def mismatched_release(self, file: Path | None, library: Library) -> str | None:
        """What the MPI library in `file` is, if its programs cannot run under this launcher.

        Only for a library with the right soname.
        """
        return other_flavour(self, file, library)

    def hide_report(self, environment: Mapping[str, str], show: Show) -> Show:
        """`show` without the lines that the library prints only because hvscale asks.

        The ranks' logs keep them.
        """
        return show

    def command_line(
        self, np: int, command: list[str], variables: Mapping[str, str], library: Library
    ) -> CommandParts | None:
        """A shell command that starts the job without hvscale; None if impossible."""
        return None

    def horovodrun_options(self, variables: Mapping[str, str], library: Library) -> list[str]:
        """The options that horovodrun needs beside its configuration file."""
        return []

    def works_with_horovodrun(self, transport: str | None) -> bool:
        """Whether horovodrun can start a job over `transport`; None means none was chosen."""
        return self.supports_horovodrun


FLAVOURS: Registry[Flavour] = Registry("flavour", __name__)


def register(flavour: Flavour) -> None:
    FLAVOURS.register(flavour.name, flavour)


def get(name: str) -> Flavour:
    """The flavour of this name. Raises RequestError that suggests the nearest name."""
    return FLAVOURS.get(name, "--mpi")


def names() -> list[str]:
    return FLAVOURS.names()


def of_this_environment() -> str:
    """The flavour whose library this environment's Horovod was built against."""
    try:
        record = read_record(Path(sysconfig.get_path("purelib"), "horovod", "torch", "library"))
    except RequestError:  # launching reports it, with the command that mends it
        record = None
    version = record.mpi.version.replace("(R)", "") if record else ""
    named = (name for name, flavour in FLAVOURS.all().items() if version.startswith(flavour.library_name))
    return next(named, DEFAULT)


def mpi_help() -> str:
    """The help of --mpi."""
    known = ", ".join(f"{name} ({flavour.help})" for name, flavour in FLAVOURS.all().items())
    return f"Start the ranks with this library: {known}."


def transport_help() -> str:
    """The help of --transport."""
    choices = (
        f"{flavour.transports_help} ({name})" for name, flavour in FLAVOURS.all().items() if flavour.transports_help
    )
    return f"Send messages over this transport: {'; '.join(choices)}. [default: the library decides]"


def all_with_mpi() -> list[Flavour]:
    return [flavour for flavour in FLAVOURS.all().values() if flavour.has_mpi]


def of_soname(soname: str) -> list[str]:
    """The flavours whose programs are linked to `soname`."""
    return [flavour.name for flavour in all_with_mpi() if flavour.soname == soname]


def all_rank_variables() -> list[RankVariables]:
    """The rank variables of every launcher, each once; if several are set, the first applies."""
    found = dict.fromkeys(one for flavour in FLAVOURS.all().values() for one in flavour.rank_variables)
    return sorted(found, key=lambda one: one.set_by_slurm)


def launched_place() -> tuple[int, int, str] | None:
    """Return the number of ranks, this rank and the launcher's name; None for a single process."""
    for one in all_rank_variables():
        if one.size in os.environ:
            return int(os.environ[one.size]), int(os.environ.get(one.rank, "0")), one.launcher
    return (int(os.environ[NP_VARIABLE]), 0, "hvscale launch") if NP_VARIABLE in os.environ else None


def recognize(text: str, first: str | None = None) -> tuple[str, str] | None:
    """The flavour and version that this text of a library or program describes; None if unknown.

    `first`: the flavour to ask first, because one that wraps another recognizes the same text.
    """
    asked = sorted(all_with_mpi(), key=lambda flavour: flavour.name != first)
    found = ((flavour.name, version) for flavour in asked if (version := flavour.version_in(text)))
    return next(found, None)


def describe(text: str) -> str:
    """The flavour and version that the text describes; its first line if it is unknown."""
    return " ".join(recognize(text) or ()) or f"unknown ({(text.strip().splitlines() or ['it printed nothing'])[0]})"


def other_flavour(flavour: Flavour, file: Path | None, library: Library) -> str | None:
    """The flavour of the library in `file`, if it is another with the same soname."""
    prefix = Path(library.launcher or "").resolve().parent.parent
    if file is None or prefix in file.resolve().parents:
        return None
    text = library_version(file, {})
    return None if not text or flavour.version_in(text) else describe(text)


def choose_transport(flavour: Flavour, library: Library, wanted: str | None, environment: dict[str, str]) -> Library:
    """The library with the transport of `--transport`.

    Raises RequestError for one that it was not built with.
    """
    if wanted is None:
        return library
    built_with = flavour.transports(library, environment)
    if wanted not in built_with:
        known = f"it has {', '.join(built_with)}" if built_with else "it leaves no choice"
        raise RequestError(f"--transport {wanted}: not in {library.flavour} {library.version}; {known}")
    return library.model_copy(update={"transport": wanted, "transports": built_with})
