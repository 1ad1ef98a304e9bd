"""The interpreter of a site and its PyTorch: what `make setup TORCH=site` builds on."""

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logged_run import SetUpError

# One file names the minimum versions: the range of each package in pyproject.toml.
PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
# What the site's PyTorch comes with. Each is used from the site if its version is in the range.
SITE_PACKAGES = ("torch", "torchvision", "numpy")
# Printed by the site's Python. The standard library's folders and the current folder are no
# packages.
ASK = """
import json, sys, sysconfig
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
standard |= {folder + "/lib-dynload" for folder in standard}
found = {
    "folders": [path for path in sys.path if path and path not in standard and not path.endswith(".zip")],
    "versions": {name: version(name) for name in sys.argv[1:]},
}
try:
    import torch
except ModuleNotFoundError as error:
    found["missing"], found["problem"] = error.name == "torch", str(error)
except Exception as error:
    found["missing"], found["problem"] = False, (str(error).splitlines() or [repr(error)])[-1]
else:
    found["torch"] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cxx11_abi": bool(torch.compiled_with_cxx11_abi()),
        "folder": torch.__path__[0],
    }
print("\\n" + json.dumps(found))
"""
ASK_SECONDS = 300  # the first import of PyTorch from a parallel file system can take minutes
HEADER = Path("include", "ATen", "ATen.h")
# PyTorch's headers end the compilation with this text under an older standard.
NEEDED_STANDARD = re.compile(r"C\+\+(\d\d) or later compatible compiler is required")
LATEST_STANDARD = 20
# The installer of a bundle without PyTorch has a copy of this file.
IN_BUNDLE = (PYPROJECT.parent.parent / "bundle.json").exists()
OTHER_PYTHON = (
    "PYTHON=/path/to/python ./install.sh PREFIX" if IN_BUNDLE else "make setup TORCH=site PYTHON=/path/to/python"
)
LEAVE_OUT = (
    "use a virtual environment with PyTorch's own wheel, or a bundle that contains PyTorch (make bundle without TORCH)"
    if IN_BUNDLE
    else "leave out TORCH=site to install the locked release"
)


@dataclass(frozen=True)
class SiteTorch:
    """A site's PyTorch."""

    version: str
    cuda: str | None  # the CUDA release it was built with; None: for CPUs
    cxx11_abi: bool
    folder: Path
    standard: int  # the C++ standard that its headers need

    @property
    def library_folders(self) -> tuple[str, ...]:
        """The folders of its libraries; conda has links from `torch/lib` to another folder."""
        own = self.folder / "lib"
        return tuple(dict.fromkeys([str(own), str((own / "libtorch.so").resolve().parent)]))


@dataclass(frozen=True)
class SitePython:
    """A site's interpreter."""

    program: Path
    folders: tuple[Path, ...]  # of packages, in the order in which it searches them
    versions: dict[str, str]  # of those of SITE_PACKAGES that it has and that are in their range
    torch: SiteTorch


def ask_site_python(program: Path = Path(sys.executable)) -> SitePython:
    """Return what an interpreter has. Raises SetUpError if its PyTorch cannot be built on."""
    answer = ask(program)
    if "torch" not in answer:
        raise no_torch(program, answer)
    found = answer["torch"]
    folder = Path(found["folder"])
    minimum = minimum_version("torch")
    if release(found["version"]) < minimum:
        raise SetUpError(
            f"{folder} is PyTorch {found['version']}; hvscale needs {text(minimum)} or later: load a newer module, give another "
            f"interpreter ({OTHER_PYTHON}), or {LEAVE_OUT}"
        )
    torch = SiteTorch(found["version"], found["cuda"], found["cxx11_abi"], folder, needed_standard(folder))
    versions = {
        name: version
        for name, version in answer["versions"].items()
        if version is not None and release(version) >= minimum_version(name)
    }
    folders = tuple(Path(path).absolute() for path in answer["folders"] if Path(path).is_dir())
    return SitePython(program, folders, versions | {"torch": torch.version}, torch)


def ask(program: Path) -> dict[str, Any]:
    """Return the answers of ASK. Raises SetUpError if the interpreter does not run."""
    command = [str(program), "-c", ASK, *SITE_PACKAGES]
    try:
        # Another folder, because the current one is searched for modules.
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=ASK_SECONDS, cwd="/", stdin=subprocess.DEVNULL
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        raise SetUpError(
            f"{program} ends with an error: {(error.stderr.splitlines() or ['no message'])[-1]}"
        ) from error
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise SetUpError(f"{program} does not run: {error}") from error
    return answer


def no_torch(program: Path, answer: dict[str, Any]) -> SetUpError:
    """Return an error about a PyTorch that is missing or cannot be imported."""
    if answer["missing"]:
        return SetUpError(
            f"{program} has no PyTorch: load the module that has it, give its interpreter "
            f"({OTHER_PYTHON}), or {LEAVE_OUT}"
        )
    return SetUpError(
        f"{program} cannot import its PyTorch ({answer['problem'][:200]}): load the modules that it needs, or {LEAVE_OUT}"
    )


def needed_standard(folder: Path) -> int:
    """Return the C++ standard, such as 17. Raises SetUpError for a PyTorch without headers."""
    try:
        header = (folder / HEADER).read_text(errors="replace")
    except OSError as error:
        raise SetUpError(
            f"{folder} has no C++ headers ({HEADER} is missing), and Horovod is compiled with them: install PyTorch's "
            f"development files (Debian: libtorch-dev; conda: libtorch), or {LEAVE_OUT}"
        ) from error
    found = NEEDED_STANDARD.search(header)
    return int(found[1]) if found else LATEST_STANDARD


def minimum_version(name: str) -> tuple[int, int]:
    """Return the lower bound of a package in pyproject.toml."""
    dependencies: list[str] = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    (bound,) = (entry.partition(">=")[2] for entry in dependencies if re.match(rf"{name}\s*>=", entry))
    return release(bound)


def release(version: str) -> tuple[int, int]:
    """Return major and minor; NVIDIA's 2.6.0a0+ecf3bae is as new as 2.6."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
