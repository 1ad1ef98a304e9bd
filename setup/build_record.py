"""Record what the installed Horovod was built against: <site-packages>/horovod/hvscale-build.json.

hvscale/launch/mpi/build_record.py reads it at each start, and compares it with what is there.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from environment import Environment
from horovod_recipe import Recipe
from logged_run import SetUpError

FILE_NAME = "hvscale-build.json"
SCHEMA = "hvscale/horovod-build/1"
# It holds the version, the CUDA release and the commit, so that its hash identifies the build.
TORCH_VERSION_FILE = "version.py"
# The variables that choose what Horovod is built against; they belong to the command that rebuilds.
CHOOSING_VARIABLES = (
    *("HVSCALE_MPI_HOME", "HVSCALE_MPICH_HOME", "HVSCALE_NCCL", "HVSCALE_CUDA_HOME", "HVSCALE_NCCL_HOME"),
    *("CC", "CXX"),
)


def write_record(environment: Environment, recipe: Recipe, rebuild: str) -> None:
    """Write the record of the installed Horovod, unless it is there. `rebuild`: a shell command."""
    packages = next(environment.folder.glob("lib/python3*/site-packages"))
    path = packages / "horovod" / FILE_NAME
    text = json.dumps(record(environment, packages, recipe, rebuild), indent=2) + "\n"
    if path.exists() and path.read_text() == text:
        return
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(path)


def record(environment: Environment, packages: Path, recipe: Recipe, rebuild: str) -> dict[str, object]:
    """Return the record as a JSON object. Raises SetUpError if PyTorch has no version file."""
    site = recipe.site_torch
    torch = site.folder if site else packages / "torch"
    try:
        version_file = (torch / TORCH_VERSION_FILE).read_bytes()
    except OSError as error:
        raise SetUpError(f"{torch} has no {TORCH_VERSION_FILE} ({error.strerror}): reinstall PyTorch") from error
    library = recipe.mpi.library or next(environment.folder.glob("lib/libmpi.so.[0-9][0-9]"), None)
    return {
        "schema": SCHEMA,
        "horovod": recipe.horovod.version,
        "torch": {
            "version": version_field(version_file, "__version__") or recipe.torch_version,
            "cuda": version_field(version_file, "cuda"),
            "cxx11_abi": site.cxx11_abi if site else None,
            "folder": str(torch),
            "version_file_sha256": hashlib.sha256(version_file).hexdigest(),
        },
        "mpi": {
            "version": recipe.mpi.name,
            "library": str(library) if library else None,
            "home": str(recipe.mpi.home) if recipe.mpi.home else None,
        },
        "cuda": recipe.cuda.version if recipe.cuda else None,
        "nccl": nccl_version(environment, recipe),
        "compiler": recipe.compilers.cxx_version,
        "cxx_standard": recipe.cxx_standard,
        "rebuild": rebuild,
    }


def version_field(version_file: bytes, name: str) -> str | None:
    """Return a field of torch/version.py such as `cuda: Optional[str] = '12.4'`; None for None."""
    found = re.search(
        rf"^{name}\b[^=\n]*=\s*['\"]([^'\"\n]*)['\"]", version_file.decode(errors="replace"), re.MULTILINE
    )
    return found[1] if found else None


def nccl_version(environment: Environment, recipe: Recipe) -> str | None:
    """Return the version in nccl.h; None for a Horovod without NCCL."""
    if recipe.cuda is None or not recipe.cuda.with_nccl:
        return None
    wheel = next(environment.folder.glob("lib/python3*/site-packages/nvidia/nccl"), Path())
    header = ((recipe.cuda.nccl_home or wheel) / "include" / "nccl.h").read_text(errors="replace")
    numbers = (re.search(rf"^#define NCCL_{part} (\d+)", header, re.MULTILINE) for part in ("MAJOR", "MINOR", "PATCH"))
    return ".".join(number[1] for number in numbers if number)


def rebuild_command(clone: Path, target: str, mpi: str, torch: str) -> str:
    """Return the make command that repeats this set-up from any folder."""
    words = ["make", "-C", str(clone), target]
    words += [f"MPI={mpi}"] if mpi != "openmpi" else []
    if torch == "site":
        words += [f"TORCH={torch}", f"PYTHON={sys.executable}"]
    elif not is_default_python():
        words.append(f"PYTHON={Path(sys.executable).resolve()}")  # not the link in an environment
    words += [f"{name}={os.environ[name]}" for name in CHOOSING_VARIABLES if os.environ.get(name)]
    return shlex.join(words)


def is_default_python() -> bool:
    """Return whether this interpreter is python3 in PATH, which make uses without PYTHON."""
    default = shutil.which("python3")
    return default is not None and Path(default).samefile(sys.executable)
