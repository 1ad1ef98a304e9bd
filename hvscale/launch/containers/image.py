"""Builds the small image that ranks run in.

It holds this machine's distribution with what Python, PyTorch and Open MPI need, and nothing of
hvscale.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvscale.core.errors import RequestError
from hvscale.launch.supervision import interrupts
from hvscale.launch.supervision.programs import call, require

DEFAULT_IMAGE = "hvscale:base"
# Python for environments based on the distribution's, with the libraries that any Python uses; tc
# for --link.
PACKAGES = ("ca-certificates", "iproute2", "libgomp1", "libstdc++6", "python3")
IMAGE_LABEL = "hvscale.image"
WITHOUT_DEBOOTSTRAP = (
    "if Docker can pull images, `docker build --tag hvscale:base docker/` builds it from Debian's image"
)
LAST_LINES = 3
END_SECONDS = 60


@dataclass(frozen=True)
class AptSource:
    """The package source that apt uses on this machine."""

    mirror: str
    suite: str


def require_image(client: Any, name: str) -> Any:
    """The image. Raises RequestError, with how to get it, if Docker does not have it."""
    import docker

    try:
        return client.images.get(name)
    except docker.errors.ImageNotFound as error:
        remedy = (
            "build it once with `hvscale image build`"
            if name == DEFAULT_IMAGE
            else f"`docker pull {name}`, or choose another with --image"
        )
        raise RequestError(f"Docker has no image {name}: {remedy}") from error


def source() -> AptSource:
    """The mirror of this distribution's main packages. Raises RequestError without apt."""
    require("apt-get", "apt", "hvscale image build")
    codename = next(
        (
            line.partition("=")[2].strip('"')
            for line in Path("/etc/os-release").read_text().splitlines()
            if line.startswith("VERSION_CODENAME=")
        ),
        "",
    )
    listing = call(["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME) $(COMPONENT)", "Created-By: Packages"])
    for line in listing.splitlines():
        site, *rest = line.split()
        if rest == [codename, "main"]:
            return AptSource(mirror=site, suite=codename)
    raise RequestError(
        f"apt has no source of {codename or 'this distribution'}: `apt-get update` first, or {WITHOUT_DEBOOTSTRAP}"
    )


def cache_folder() -> Path:
    """The folder for built images, in the cache that the set-up uses for its wheels."""
    named = os.environ.get("HVSCALE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvscale"
    return (Path(named) if named else base).expanduser().absolute() / "images"


def build(client: Any, name: str) -> str:
    """Build the image, unless Docker has it, and return its id.

    Uses the cached archive if there is one. Raises RequestError if it cannot be built.
    """
    import docker

    with suppress(docker.errors.ImageNotFound):
        return str(client.images.get(name).id)
    origin = source()
    archive = (
        cache_folder() / f"{origin.suite}-{call(['dpkg', '--print-architecture']).strip()}-{'-'.join(PACKAGES)}.tar"
    )
    if not archive.is_file():
        make_archive(origin, archive)
    with archive.open("rb") as stream:
        client.api.import_image(
            src=stream, repository=name, changes=[f"LABEL {IMAGE_LABEL}={origin.suite}", "ENV LANG=C.UTF-8"]
        )
    return str(client.images.get(name).id)


def make_archive(origin: AptSource, archive: Path) -> None:
    """Create a minimal system as a tar file, atomically."""
    debootstrap = require("debootstrap", "debootstrap", f"hvscale image build ({WITHOUT_DEBOOTSTRAP})")
    if os.geteuid() != 0:
        raise RequestError(f"hvscale image build needs root to unpack a system: use sudo; {WITHOUT_DEBOOTSTRAP}")
    with temporary_folder(archive.parent) as work:
        system = work / "system"
        log = work / "log"
        words = [
            debootstrap,
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            origin.suite,
            str(system),
            origin.mirror,
        ]
        if run_debootstrap(words, log):
            message = " ".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise RequestError(f"debootstrap failed: {message}")
        for what in (
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
            "usr/share/locale",
        ):
            shutil.rmtree(system / what, ignore_errors=True)
        unfinished = work / "system.tar"
        call(["tar", "--create", "--file", str(unfinished), "--directory", str(system), "--numeric-owner", "."])
        unfinished.replace(archive)


def run_debootstrap(words: list[str], log: Path) -> int:
    """Run it and return its exit status; a signal ends it, and it then unmounts what it mounted."""
    with log.open("wb") as stream, ExitStack() as stack:
        with interrupts.defer_interrupts():
            process = subprocess.Popen(
                words,
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                env=with_apt_proxy(),
                start_new_session=True,
            )
            stack.callback(end, process)
        return process.wait()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a program that leads a session to end, and wait for it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def with_apt_proxy() -> dict[str, str]:
    """This environment with apt's proxy, for debootstrap."""
    proxy = call(["apt-config", "shell", "proxy", "Acquire::http::Proxy"]).partition("=")[2].strip().strip("'")
    return {**os.environ, **({"http_proxy": proxy} if proxy else {})}


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Context: a new folder, removed at the end, also when a signal interrupts the block.

    Raises RequestError if it cannot be created.
    """
    with interrupts.catch_signals() as caught:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=".building-"))
        except OSError as error:
            raise RequestError(f"{parent} cannot be written: {error.strerror}; set HVSCALE_CACHE") from error
        try:
            with interrupts.interruptible():
                yield folder
        except interrupts.InterruptedWaitError:
            raise SystemExit(128 + caught[0]) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
