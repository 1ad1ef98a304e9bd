"""The MPI that Horovod is built against: the locked wheel in the environment, or the site's."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from logged_run import SetUpError
from machine import first_line_of
from packages import read_locked_package


@dataclass(frozen=True)
class Mpi:
    """An MPI to build against.

    library_folders: run path entries for libmpi; $ORIGIN is the folder of Horovod's library.
    """

    name: str  # for people: "Open MPI 5.0.11"
    label: str  # in a file name: "openmpi-5.0.11"
    mpicxx: Path
    dependency_group: str | None  # of pyproject.toml; None: the site's MPI
    library_folders: tuple[str, ...]
    library: Path | None = None  # of a site's MPI

    @property
    def home(self) -> Path | None:
        """The folder of a site's MPI; None for the wheel, which has its own in each environment."""
        return None if self.dependency_group else self.mpicxx.parent.parent

    def build_variables(self, work: Path) -> dict[str, str]:
        """Return the variables for setup/horovod/toolchain.cmake and mpicxx.

        work: a folder that exists until the build ends.
        """
        if self.dependency_group is None:
            return {"HVSCALE_BUILD_MPICXX": str(self.mpicxx)}
        # CMake splits mpicxx's output at spaces, which the clone's path may contain: use a link.
        link = work / "mpi"
        link.symlink_to(self.mpicxx.parent.parent)
        # Open MPI reads these variables; MPICH derives its folders from the path of mpicxx.
        folders = {"OPAL_INCLUDEDIR": str(link / "include"), "OPAL_LIBDIR": str(link / "lib")}
        return {"HVSCALE_BUILD_MPICXX": str(link / "bin" / self.mpicxx.name), **folders}


@dataclass(frozen=True)
class MpiChoice:
    """An ABI: its environment, with an MPI wheel or the site's MPI instead."""

    name: str  # for people: "Open MPI"
    folder: str  # of the environment, in the clone
    package: str  # the wheel, and its dependency group in pyproject.toml
    site_variable: str  # the variable with the folder of the site's MPI
    sonames: tuple[str, ...]  # of the libraries with this ABI
    any_abi: bool  # accept another ABI in the folder that site_variable names


CHOICES = {
    "openmpi": MpiChoice("Open MPI", ".venv", "openmpi", "HVSCALE_MPI_HOME", ("libmpi.so.40",), any_abi=True),
    # MPICH's ABI: also MVAPICH2 and Intel MPI. Debian names MPICH's library libmpich.so.
    "mpich": MpiChoice(
        "MPICH", ".venv-mpich", "mpich", "HVSCALE_MPICH_HOME", ("libmpi.so.12", "libmpich.so.12"), any_abi=False
    ),
}
SITE = "site"  # the value of --mpi for the MPI in PATH; a folder is a value too
PROGRAM = "#include <mpi.h>\nint main(int n, char **words) { MPI_Init(&n, &words); return MPI_Finalize(); }\n"
LINKED = re.compile(r"^\s*(libmpi(?:ch)?\.so\.\d+) => (\S+)", re.MULTILINE)
# The C function of every ABI may be called before MPI_Init.
ASK_LIBRARY = """
import ctypes, sys
text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
ctypes.CDLL(sys.argv[1]).MPI_Get_library_version(text, ctypes.byref(length))
print(text.value.decode(errors="replace"))
"""
HOW_TO_NAME_ONE = (
    "load your site's MPI module, or name the folder with bin/mpicxx: make setup MPI=/path/to/mpi, in a bundle --mpi "
    "(Debian, Ubuntu: apt install libopenmpi-dev openmpi-bin, then MPI=site)"
)


def is_request(word: str) -> bool:
    """Return whether `word` is a value of --mpi: a wheel, `site`, or a folder."""
    return word in CHOICES or word == SITE or "/" in word


def find_mpi(request: str, clone: Path, lock_file: Path) -> tuple[MpiChoice, Mpi]:
    """Return the MPI of a value of --mpi, and the choice whose ABI it has.

    Raises SetUpError if a site's MPI does not work or has another ABI.
    """
    if request in CHOICES:
        choice = CHOICES[request]
        return choice, choose_mpi(choice, clone / choice.folder, lock_file)
    home = home_in_path() if request == SITE else Path(request).expanduser().absolute()
    mpi, soname = examine(home, f"MPI={request}")
    for choice in CHOICES.values():
        if soname in choice.sonames:
            return choice, mpi
    raise SetUpError(f"MPI={request}: {mpi.name} has {soname}, which is neither Open MPI 4 or 5 nor MPICH's ABI")


def home_in_path() -> Path:
    """Return the folder of the MPI that the variables of a site name, or of mpicxx in PATH."""
    for choice in CHOICES.values():
        if home := os.environ.get(choice.site_variable):
            return Path(home).expanduser().absolute()
    mpicxx = shutil.which("mpicxx")
    if mpicxx is None:
        raise SetUpError(f"MPI=site: no mpicxx in PATH: {HOW_TO_NAME_ONE}")
    return Path(mpicxx).absolute().parent.parent


def choose_mpi(choice: MpiChoice, environment: Path, lock_file: Path) -> Mpi:
    """Return the site's MPI if the choice's variable is set, else the wheel."""
    home = os.environ.get(choice.site_variable)
    if home:
        return site_mpi(choice, Path(home).expanduser().absolute())
    version = read_locked_package(lock_file, choice.package).version
    return Mpi(
        name=f"{choice.name} {version}",
        label=f"{choice.package}-{version}",
        mpicxx=environment / "bin" / "mpicxx",
        dependency_group=choice.package,
        # From lib/python3.N/site-packages/horovod/torch to lib.
        library_folders=("$ORIGIN/../../../..",),
    )


def site_mpi(choice: MpiChoice, home: Path) -> Mpi:
    """Return the MPI that the choice's variable names. Raises SetUpError if it cannot be used."""
    mpi, soname = examine(home, f"{choice.site_variable}={home}")
    if soname not in choice.sonames and not choice.any_abi:
        raise SetUpError(
            f"{choice.site_variable}={home}: {mpi.name} has {soname}, not {choice.sonames[0]}, the library of MPICH, "
            "MVAPICH2 and Intel MPI; set it to the folder of one of them, or unset it to use the MPICH wheel"
        )
    return mpi


def examine(home: Path, request: str) -> tuple[Mpi, str]:
    """Return the MPI in a folder and its library's soname.

    It compiles and links a program with the MPI's own mpicxx, and asks the library for its version.
    `request` is how the user named the folder. Raises SetUpError if any of this fails.
    """
    mpicxx = home / "bin" / "mpicxx"
    flags = first_line_of([str(mpicxx), "-show"])
    if flags is None:
        raise SetUpError(f"{request}: no working bin/mpicxx in {home}: {HOW_TO_NAME_ONE}")
    soname, linked = link_program(mpicxx, request)
    words = shlex.split(flags)
    named = [word[2:] for word in words if word.startswith("-L")]
    own = [home / "lib", home / "lib64", home / "lib" / (sysconfig.get_config_var("MULTIARCH") or "")]
    candidates = dict.fromkeys(str(folder) for folder in [*([linked.parent] if linked else []), *named, *own])
    folders = tuple(folder for folder in candidates if Path(folder, soname).exists())
    if not folders:
        raise SetUpError(f"{request}: {soname} is in none of {', '.join(candidates)}: reinstall this MPI")
    library = Path(folders[0], soname)
    name = library_name(library, request)
    label = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-").lower()[:40]
    return Mpi(f"{name} in {home}", label, mpicxx, None, folders, library), soname


def link_program(mpicxx: Path, request: str) -> tuple[str, Path | None]:
    """Return the soname and file of the libmpi to which mpicxx links a program.

    The file is None if the dynamic linker does not find it. Raises SetUpError if this fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "program.cpp"), Path(folder, "program")
        source.write_text(PROGRAM)
        compiled = run([str(mpicxx), str(source), "-o", str(program)])
        if compiled.returncode != 0:
            lines = [line for line in compiled.stderr.splitlines() if "rror" in line] or compiled.stderr.splitlines()
            raise SetUpError(
                f"{request}: {mpicxx} cannot compile an MPI program ({(lines or ['no message'])[0][:200]}): load the compiler "
                "that this MPI was built with, or install this MPI's development files"
            )
        found = LINKED.search(run(["ldd", str(program)]).stdout)
    if found is None:
        raise SetUpError(
            f"{request}: programs of {mpicxx} are not linked to a shared libmpi; Horovod needs one: install this MPI with its "
            "shared libraries, or name another folder"
        )
    return found[1], Path(found[2]) if found[2].startswith("/") else None


def library_name(library: Path, request: str) -> str:
    """Return name and version from the library's own text: "MVAPICH2 2.3.7", "Open MPI v4.1.4"."""
    asked = run([sys.executable, "-I", "-S", "-c", ASK_LIBRARY, str(library)])
    lines = [" ".join(line.split()) for line in asked.stdout.splitlines() if line.strip()]
    if asked.returncode != 0 or not lines:
        reason = (asked.stderr.splitlines() or ["it reports no version"])[-1]
        raise SetUpError(f"{request}: {library} cannot be loaded ({reason[:200]}): load the modules that it needs")
    return re.sub(r"\s*Version\s*:\s*", " ", lines[0].partition(",")[0])


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a program, whatever its exit status. Raises SetUpError if it does not start."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise SetUpError(f"{command[0]} does not start: {error.strerror}; check PATH") from error
