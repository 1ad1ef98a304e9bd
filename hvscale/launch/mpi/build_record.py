"""What an installed Horovod was built against, as the set-up recorded it beside it.

A Horovod works only with the PyTorch that it was compiled against. The checks read small files and
import nothing, because every start makes them.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from hvscale.core.documents import VersionedDocument, from_json, other_version
from hvscale.core.errors import RequestError
from hvscale.core.files import read_bytes

# As setup/build_record.py writes it, in the package's folder.
FILE_NAME = "hvscale-build.json"
LARGEST_RECORD_BYTES = 1 << 20
REBUILD = "make setup"
VERSION_FILE = Path("torch", "version.py")
VERSION = re.compile(r"^__version__\b[^=\n]*=\s*['\"]([^'\"\n]*)['\"]", re.MULTILINE)


class TorchBuild(BaseModel):
    """`cuda`: the CUDA release it was built with. `cxx11_abi`: None if it was not asked."""

    version: str
    cuda: str | None
    cxx11_abi: bool | None
    folder: str
    version_file_sha256: str


class MpiBuild(BaseModel):
    """`home`: the folder of a site's MPI; None for the wheel in the environment."""

    version: str
    library: str | None
    home: str | None


class HorovodBuild(VersionedDocument):
    """What an installed Horovod was built against.

    `rebuild`: the shell command that builds it again for what is there.
    """

    schema_: Literal["hvscale/horovod-build/1"] = "hvscale/horovod-build/1"
    horovod: str
    torch: TorchBuild
    mpi: MpiBuild
    cuda: str | None
    nccl: str | None
    compiler: str
    cxx_standard: int
    rebuild: str

    def description(self) -> str:
        """For people: "PyTorch 2.6.0+cu124, Open MPI v4.1.4 in /usr, NCCL 2.21.5"."""
        nccl = [f"NCCL {self.nccl}"] if self.nccl else []
        return ", ".join([f"PyTorch {self.torch.version}", self.mpi.version, *nccl])


def read_record(library: Path) -> HorovodBuild | None:
    """The record beside Horovod's PyTorch library; None if the set-up did not build it.

    Raises RequestError for a record that cannot be read.
    """
    path = library.parent.parent / FILE_NAME
    try:
        text = read_bytes(path, LARGEST_RECORD_BYTES)
        return from_json(HorovodBuild, text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"{path} cannot be read ({error.strerror}): type `{REBUILD}`") from error
    except ValueError as error:
        other = other_version(HorovodBuild, text)
        why = f"was written by {other}" if other else "is damaged"
        raise RequestError(f"{path} {why}: type `{REBUILD}` in hvscale's clone") from error


def rebuild_command(library: Path) -> str:
    """The command that builds this Horovod again."""
    try:
        record = read_record(library)
    except RequestError:
        record = None
    return record.rebuild if record else REBUILD


def check_torch(library: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Raise RequestError if Python would now import another PyTorch than Horovod was built against.

    `library`: Horovod's PyTorch library.
    """
    record = read_record(library)
    if record is None:
        return
    found = next((file for file in version_files(library, record, environment) if file.is_file()), None)
    if found is None:
        raise RequestError(
            f"the PyTorch {record.torch.version} of {record.torch.folder}, for which Horovod was built, is no longer there: load "
            f"its module, or build Horovod for another PyTorch: {record.rebuild}"
        )
    content = read_bytes(found, LARGEST_RECORD_BYTES)
    if hashlib.sha256(content).hexdigest() == record.torch.version_file_sha256:
        return
    version = VERSION.search(content.decode(errors="replace"))
    raise RequestError(
        f"Horovod was built for PyTorch {record.torch.version}{cuda(record.torch.cuda)}, but {found.parent} is "
        f"{'PyTorch ' + version[1] if version else 'another one'}: build it again: {record.rebuild}"
    )


def cuda(release: str | None) -> str:
    return f" (CUDA {release})" if release else ""


def version_files(library: Path, record: HorovodBuild, environment: Mapping[str, str]) -> Iterator[Path]:
    """The files that say which PyTorch it is, in the order in which Python searches its folders."""
    for folder in filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)):
        yield Path(folder, VERSION_FILE)
    yield library.parent.parent.parent / VERSION_FILE
    yield Path(record.torch.folder, VERSION_FILE.name)
