"""The MPI flavours, and Gloo: what can start ranks. Each is one file in this folder that registers
itself.

Everything that differs between flavours is an attribute or a method of `Flavour`, and stands in the
flavour's own file. docs/how-to/extend.md shows how to add one.
"""

import subprocess
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
from hvscale.launch.mpi.mpi_library import library_version

DEFAULT = "openmpi"
LIBRARY_DECIDES = "auto"  # the transport where none was chosen

Processes = list[subprocess.Popen[bytes]]
Show = Callable[[int, str], None]
# A command line in parts, each of which takes a line of its own when it is shown.
CommandParts = list[list[str]]


@dataclass(frozen=True)
class RankVariables:
    """The environment variables in which a launcher tells a rank its place."""

    launcher: str  # in messages, such as "Open MPI's mpirun"
    rank: str
    size: str
    local_rank: str
    set_by_slurm: bool = False  # Slurm's srun sets them, too, and they mean its own tasks below another launcher


class Flavour(ABC):
    """A way to start ranks. A subclass sets what has no default here."""

    name: ClassVar[str]
    """What --mpi and run.json call it."""
    library_name: ClassVar[str]
    """The library's own name, such as "Open MPI"."""
    help: ClassVar[str]
    """What it is, in a few words, for the help of --mpi."""
    rank_variables: ClassVar[tuple[RankVariables, ...]]
    """Those of each launcher that it may come with; the first that is set holds."""

    soname: ClassVar[str | None] = None
    """The MPI library that its programs are linked to, None without MPI. Several flavours may share
    one.
    """
    setup_command: ClassVar[str] = ""
    """The command that makes an environment with a Horovod for it; empty when there is none."""
    transports_help: ClassVar[str] = ""
    """The usual names of its transports, for the help of --transport; empty when it leaves no
    choice.
    """
    variable_prefixes: ClassVar[tuple[str, ...]] = ()
    """How the variables begin that change the way it communicates: a job gets them by --env alone.
    """
    passed_variables: ClassVar[tuple[str, ...]] = ()
    """Variables of the caller that its programs need: a job gets them without --env."""
    binding_variable: ClassVar[str | None] = None
    """The variable that binds ranks to cores."""
    report_variables: ClassVar[Mapping[str, str]] = {}
    """What makes the library print its transport when it is started alone."""
    transport_pattern: ClassVar[Pattern[str] | None] = None
    """Finds the transport in what it then prints."""
    transient_failure: ClassVar[tuple[bytes, str] | None] = None
    """What its launcher prints for a transient failure, and that failure in words: the job is then
    started once more.
    """
    split_devices_release: ClassVar[str] = ""
    """The release that selects its GPUs by a variable of its own, for an error about --devices
    split.
    """
    settings_reader: ClassVar[SettingsReader | None] = None
    """Asks the library which settings it uses."""
    layers: ClassVar[frozenset[str]] = frozenset()
    """The communication libraries below it that have knobs of their own, by the names of their knob
    libraries.
    """
    horovod_controller: ClassVar[str] = "mpi"
    """What Horovod's option --controller calls it."""
    supports_horovodrun: ClassVar[bool] = False
    """Whether Horovod's own launcher can start it."""
    reduce_scatter_in_horovod: ClassVar[bool] = True
    """Whether Horovod 0.28 has a reduce-scatter over it."""
    srun_mpi: ClassVar[str] = "pmi2"
    """The value of srun's --mpi that its ranks find each other by."""

    @property
    def has_mpi(self) -> bool:
        return self.soname is not None

    @abstractmethod
    def find(self, environment: dict[str, str]) -> Library:
        """What is installed, as it names itself. Raises RequestError, with how to install it, when
        there is none.
        """

    @abstractmethod
    def start(self, job: Job, rank_program: list[str], library: Library) -> AbstractContextManager[Processes]:
        """Start np processes of `rank_program`; gives the processes whose end is the job's end, and
        frees what they needed on exit.
        """

    def transports(self, library: Library, environment: dict[str, str]) -> list[str]:
        """Those that the library was built with, by its own names. Apart from `find`: asking may
        take as long as a start.
        """
        return library.transports

    def version_in(self, text: str) -> str | None:
        """The version when `text`, from its programs or from MPI_Get_library_version, is about this
        flavour.
        """
        return None

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        """The job's environment with what this library needs to run unbound, over
        `library.transport`, as its own libmpi.
        """
        return environment

    def split_devices_variable(self, library: Library) -> str | None:
        """The variable that lists the GPUs for the library alone; None when it sees those of its
        process.
        """
        return None

    def mismatched_release(self, file: Path | None, library: Library) -> str | None:
        """What the MPI library in `file` is, when programs linked to it do not run under this
        launcher although its soname is right.
        """
        return other_flavour(self, file, library)

    def hide_report(self, environment: Mapping[str, str], show: Show) -> Show:
        """`show` without the lines that the library prints only because its settings were asked
        for. The ranks' logs keep them.
        """
        return show

    def command_line(
        self, np: int, command: list[str], variables: Mapping[str, str], library: Library
    ) -> CommandParts | None:
        """The line for a shell that starts the command with these variables without hvscale; None
        where there is no such line.
        """
        return None

    def horovodrun_options(self, variables: Mapping[str, str], library: Library) -> list[str]:
        """What Horovod's own launcher needs beside its configuration file."""
        return []

    def works_with_horovodrun(self, transport: str | None) -> bool:
        """Whether Horovod's own launcher can start a job over `transport`; None: none was
        chosen.
        """
        return self.supports_horovodrun


FLAVOURS: Registry[Flavour] = Registry("flavour", __name__)


def register(flavour: Flavour) -> None:
    FLAVOURS.register(flavour.name, flavour)


def get(name: str) -> Flavour:
    """Raises RequestError, suggesting the nearest one, for an unknown flavour."""
    return FLAVOURS.get(name, "--mpi")


def names() -> list[str]:
    return FLAVOURS.names()


def mpi_help() -> str:
    """The help of --mpi."""
    known = ", ".join(f"{name} ({flavour.help})" for name, flavour in FLAVOURS.all().items())
    return f"Library that starts the ranks: {known}."


def transport_help() -> str:
    """The help of --transport."""
    choices = (
        f"{flavour.transports_help} ({name})" for name, flavour in FLAVOURS.all().items() if flavour.transports_help
    )
    return f"Transport of the messages: {'; '.join(choices)}. [default: the library decides]"


def all_with_mpi() -> list[Flavour]:
    return [flavour for flavour in FLAVOURS.all().values() if flavour.has_mpi]


def of_soname(soname: str) -> list[str]:
    """The flavours whose programs are linked to `soname`."""
    return [flavour.name for flavour in all_with_mpi() if flavour.soname == soname]


def all_rank_variables() -> list[RankVariables]:
    """Those of every launcher, each once: where several are set, the first holds."""
    found = dict.fromkeys(one for flavour in FLAVOURS.all().values() for one in flavour.rank_variables)
    return sorted(found, key=lambda one: one.set_by_slurm)


def recognize(text: str, first: str | None = None) -> tuple[str, str] | None:
    """The flavour that recognizes this text of a library or program as its own, and the version;
    None when none does.

    `first`: the flavour to ask first, because one that wraps another recognizes the same text.
    """
    asked = sorted(all_with_mpi(), key=lambda flavour: flavour.name != first)
    found = ((flavour.name, version) for flavour in asked if (version := flavour.version_in(text)))
    return next(found, None)


def describe(text: str) -> str:
    """Whose text this is, with the version, as far as a flavour recognizes it; otherwise its first
    line.
    """
    return " ".join(recognize(text) or ()) or f"unknown ({(text.strip().splitlines() or ['it printed nothing'])[0]})"


def other_flavour(flavour: Flavour, file: Path | None, library: Library) -> str | None:
    """Whose library `file` is, when it is not the flavour's own although they share a soname."""
    prefix = Path(library.launcher or "").resolve().parent.parent
    if file is None or prefix in file.resolve().parents:
        return None
    text = library_version(file, {})
    return None if not text or flavour.version_in(text) else describe(text)


def choose_transport(flavour: Flavour, library: Library, wanted: str | None, environment: dict[str, str]) -> Library:
    """The library with the transport that `--transport` names. Raises RequestError for one that it
    was not built with.
    """
    if wanted is None:
        return library
    built_with = flavour.transports(library, environment)
    if wanted not in built_with:
        known = f"it has {', '.join(built_with)}" if built_with else "it leaves no choice"
        raise RequestError(f"--transport {wanted}: not in {library.flavour} {library.version}; {known}")
    return library.model_copy(update={"transport": wanted, "transports": built_with})
