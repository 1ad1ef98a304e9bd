"""The MPI flavours, and Gloo, that start ranks. Each is the file of its name in this folder, loaded when it is asked for, and registers itself."""

import importlib
import pkgutil
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch.job import Job
from hvscale.launch.mpi.mpi_library import library_version

Processes = list[subprocess.Popen[bytes]]


class Flavour(Protocol):
    """A way to start ranks. `soname` is the MPI library its programs are linked to, None where there is no MPI; several may share one."""

    @property
    def name(self) -> str: ...
    @property
    def soname(self) -> str | None: ...

    def find(self, environment: dict[str, str]) -> Library:
        """What is installed, as it names itself. Raises RequestError, saying how to get it, when there is none."""

    def transports(self, library: Library, environment: dict[str, str]) -> list[str]:
        """Those that the library was built with, in its own words. Apart from `find`, because asking for them may take as long as a start."""

    def version_in(self, text: str) -> str | None:
        """The version when `text`, from its programs or from MPI_Get_library_version, is about this flavour."""

    def adapt(self, environment: dict[str, str], library: Library) -> dict[str, str]:
        """The job's environment with what this library needs to run unbound, over `library.transport`, as its own libmpi."""

    def split_devices_variable(self, library: Library) -> str | None:
        """The variable that lists the GPUs for the library alone; None when it sees those of its process."""

    def other_release(self, file: Path | None, library: Library) -> str | None:
        """What the MPI library in `file` is, when programs linked to it do not run under this launcher although its soname is right."""

    def start(self, job: Job, rank_program: list[str], library: Library) -> AbstractContextManager[Processes]:
        """Start np processes of `rank_program`; gives the processes whose end is the job's end, and frees what they needed on exit."""


_flavours: dict[str, Flavour] = {}


def register(flavour: Flavour) -> None:
    _flavours[flavour.name] = flavour


def get(name: str) -> Flavour:
    """Raises RequestError, naming the known flavours, for an unknown one."""
    if name not in names():
        raise RequestError(f"--mpi {name}: unknown flavour; known are {', '.join(names())}")
    importlib.import_module(f"{__name__}.{name}")
    return _flavours[name]


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def all_with_mpi() -> list[Flavour]:
    return [flavour for flavour in map(get, names()) if flavour.soname is not None]


def of_soname(soname: str) -> list[str]:
    """The flavours whose programs are linked to `soname`."""
    return [flavour.name for flavour in all_with_mpi() if flavour.soname == soname]


def named(text: str) -> tuple[str, str] | None:
    """The flavour that knows this text of a library or a program as its own, and the version; None where none does."""
    found = ((flavour.name, version) for flavour in all_with_mpi() if (version := flavour.version_in(text)))
    return next(found, None)


def described(text: str) -> str:
    """Whose text this is, with the version, as far as a flavour knows it; otherwise its first line."""
    return " ".join(named(text) or ()) or f"unknown ({(text.strip().splitlines() or ['it says nothing'])[0]})"


def other_flavour(flavour: Flavour, file: Path | None, library: Library) -> str | None:
    """Whose library `file` is, when it is not the flavour's own although they share a soname."""
    prefix = Path(library.launcher or "").resolve().parent.parent
    if file is None or prefix in file.resolve().parents:
        return None
    text = library_version(file, {})
    return None if not text or flavour.version_in(text) else described(text)
