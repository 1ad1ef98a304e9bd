"""The folders of this machine that a container sees, at the same paths.

Programs are read-only; the run folder and the working directory are writable.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import hvscale
from hvscale.core.errors import RequestError

# An image has its own versions of these folders.
IMAGE_FOLDERS = tuple(
    map(Path, ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var"))
)
NOT_OF_THE_IMAGE = tuple(map(Path, ("/usr/local", "/var/tmp")))  # noqa: S108 - only named
FOLDER_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME")
SEARCH_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH")


def is_image_folder(folder: Path) -> bool:
    if folder == Path("/"):
        return True
    inside = any(folder.is_relative_to(system) for system in IMAGE_FOLDERS)
    return inside and not any(folder.is_relative_to(own) for own in NOT_OF_THE_IMAGE)


def prefix_of(program: Path) -> list[Path]:
    """The installation of a program (`<prefix>/bin/<program>`), and a virtual
    environment's base.
    """
    prefix = program.parent.parent if program.parent.name in ("bin", "sbin") else program.parent
    found = [prefix]
    configuration = prefix / "pyvenv.cfg"
    if configuration.is_file():
        settings = dict(line.partition("=")[::2] for line in configuration.read_text().splitlines())
        home = next((value.strip() for name, value in settings.items() if name.strip() == "home"), None)
        found += [Path(home).parent, Path(home).resolve().parent] if home else []
    return found


def read_only_folders(command: list[str], environment: Mapping[str, str], launcher: str | None) -> set[Path]:
    """The folders of the ranks' programs.

    They hold this Python, the command, the launcher, and what variables name.
    """
    found = [Path(sys.prefix), Path(sys.base_prefix), *map(Path, hvscale.__path__)]
    for program in (shutil.which(command[0], path=environment.get("PATH")), launcher):
        if program:
            path = Path(program).absolute()
            found += [*prefix_of(path), *prefix_of(path.resolve())]
    # A site's PyTorch is in another installation; conda has its libraries beside site-packages.
    packages = [folder for folder in map(Path, sys.path) if folder.name in ("site-packages", "dist-packages")]
    found += [folder.parents[2] for folder in packages if len(folder.parents) > 2]
    found += [Path(environment[name]) for name in FOLDER_VARIABLES if environment.get(name)]
    for name in SEARCH_VARIABLES:
        found += [Path(folder) for folder in environment.get(name, "").split(os.pathsep) if folder]
    # A script given by its full path, and a data folder.
    for word in command[1:]:
        path = Path(word)
        if path.is_absolute() and path.exists():
            found.append(path if path.is_dir() else path.parent)
    with_targets = [*found, *(folder.resolve() for folder in found)]
    return {
        folder for folder in with_targets if folder.is_absolute() and folder.is_dir() and not is_image_folder(folder)
    }


def volumes(
    command: list[str], environment: Mapping[str, str], launcher: str | None, run: Path, more: tuple[Path, ...]
) -> dict[str, str]:
    """The mode, `ro` or `rw`, by folder.

    Raises RequestError if the image has its own version of the working directory, or Docker does
    not accept a folder's name.
    """
    here = Path.cwd()
    if is_image_folder(here):
        raise RequestError(f"{here} cannot be mounted into a container, which has its own; start from another folder")
    for folder in more:
        if not folder.is_dir():
            raise RequestError(f"--mount {folder}: no such folder")
    chosen = dict.fromkeys(
        [*read_only_folders(command, environment, launcher), *(folder.absolute() for folder in more)], "ro"
    )
    chosen |= dict.fromkeys((here, run), "rw")
    for folder in chosen:
        if "\\udc" in ascii(str(folder)):
            raise RequestError(f"{folder}: Docker accepts only UTF-8 names; rename it, or choose another folder")
    # A folder inside another with the same mode needs no mount.
    mounted = {str(folder): mode for folder, mode in chosen.items() if mode != mode_around(folder, chosen)}
    if with_colon := next((folder for folder in mounted if ":" in folder), None):
        raise RequestError(f"{with_colon}: Docker mounts no path with a colon; rename it, or choose another folder")
    return mounted


def mode_around(folder: Path, chosen: Mapping[Path, str]) -> str | None:
    """The mode of the nearest mounted folder around this one."""
    return next((chosen[parent] for parent in folder.parents if parent in chosen), None)
