"""What uv.lock pins: versions, and the hashes with which pip checks a download."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LockedPackage:
    """One package of the lock, in the version and with the file hashes it is pinned to."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """A line of a pip requirements file that accepts these files only."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash={value}" for value in self.hashes)])


def read_locked_package(lock_file: Path, name: str) -> LockedPackage:
    """Look one package up in uv.lock; KeyError when it is not there."""
    packages: list[dict[str, Any]] = tomllib.loads(lock_file.read_text())["package"]
    for package in packages:
        if package["name"] == name:
            files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            return LockedPackage(name, package["version"], tuple(file["hash"] for file in files))
    raise KeyError(f"{name} is not in {lock_file}")
