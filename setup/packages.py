"""The packages that uv.lock pins, and the package registry to download them from."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LockedPackage:
    """A package with its locked version and file hashes."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """A line of a pip requirements file that accepts only these files."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash={value}" for value in self.hashes)])


def read_locked_package(lock_file: Path, name: str) -> LockedPackage:
    """Read a package from uv.lock. Raises KeyError if it is not there."""
    packages: list[dict[str, Any]] = tomllib.loads(lock_file.read_text())["package"]
    for package in packages:
        if package["name"] == name:
            files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            return LockedPackage(name, package["version"], tuple(file["hash"] for file in files))
    raise KeyError(f"{name} is not in {lock_file}")


def mirror() -> str | None:
    """The registry mirror that pip's or uv's variables name, or None."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    return None


def registry_variables() -> dict[str, str]:
    """Variables that give the mirror to both uv and pip, even if the machine sets only one."""
    address = mirror()
    return {"UV_DEFAULT_INDEX": address, "PIP_INDEX_URL": address} if address else {}
