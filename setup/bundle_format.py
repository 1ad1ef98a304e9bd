"""What a bundle contains: bundle.json, the list of hashes, and the compressed payload.

install.sh, PYTHON_VERSION, README.txt     for people and the shell
Containerfile, hvscale.def                 for rootless Podman and Apptainer
installer/                                 setup/, pyproject.toml and uv.lock, as in a clone
payload.tar.xz                             wheels/*, stored without compression inside, and photos/;
                                           payload.tar in a bundle that is not compressed
pytorch/                                   wheels of PyTorch and of what it needs, if wanted
bundle.json                                for which machine, and what is in it
SHA256SUMS                                 of every other file, and of every file of the payload
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = "bundle.json"
SUMS = "SHA256SUMS"
PAYLOAD, COMPRESSED_PAYLOAD = "payload.tar", "payload.tar.xz"
# In SHA256SUMS, the payload's files have this folder.
PAYLOAD_FOLDER = "payload"
REQUIREMENTS = "requirements.txt"
WHEELS = "wheels"
PHOTOS = "photos"  # of the demo, by the package that they come from
PYTORCH = "pytorch"
SCHEMA = "hvscale/bundle/2"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """bundle.json: the machines that a bundle is for, and the space that it needs."""

    schema: str
    hvscale: str
    horovod: str
    python: str  # "3.11"
    machine: str  # as `uname -m` prints it
    glibc: str  # the oldest on which its wheels run: "2.28"
    mpi: str  # the wheel's name and version
    torch: str | None  # the version; None: the other machine's PyTorch
    payload_bytes: int  # unpacked
    installed_bytes: int

    @property
    def name(self) -> str:
        """The name of the archive's folder."""
        torch = f"-torch{self.torch}" if self.torch else ""
        return f"hvscale-{self.hvscale}{torch}-cp{self.python.replace('.', '')}-{self.machine}"

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def read(folder: Path) -> "Manifest":
        """Raises ValueError, KeyError or TypeError if it is not the manifest of such a bundle."""
        found = json.loads((folder / MANIFEST).read_text())
        if found["schema"] != SCHEMA:
            raise ValueError(found["schema"])
        return Manifest(**found)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_below(folder: Path) -> list[Path]:
    """Return all files of a folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write_sums(folder: Path, payload: Path) -> None:
    """Write SHA256SUMS for a bundle's folder and the folder from which its payload was made."""
    named = [(path.relative_to(folder), path) for path in files_below(folder)]
    named += [(Path(PAYLOAD_FOLDER) / path.relative_to(payload), path) for path in files_below(payload)]
    (folder / SUMS).write_text("".join(f"{sha256(path)}  {name}\n" for name, path in named))


def read_sums(folder: Path) -> dict[str, str]:
    """Return the hash by file name. Raises ValueError for a line that is not one of write_sums."""
    found = {}
    for line in (folder / SUMS).read_text().splitlines():
        digest, name = line.split("  ", 1)
        found[name] = digest
    return found


def differing(folder: Path, sums: dict[str, str], prefix: str = "") -> list[str]:
    """Return the files of `folder` that are missing, changed or not in `sums`."""
    here = {f"{prefix}{path.relative_to(folder)}": path for path in files_below(folder) if path.name != SUMS}
    listed = {name for name in sums if name.startswith(prefix)}
    if not prefix:
        listed -= {name for name in listed if name.startswith(f"{PAYLOAD_FOLDER}/")}
    changed = {name for name in listed & set(here) if sha256(here[name]) != sums[name]}
    return sorted(changed | (listed ^ set(here)))
