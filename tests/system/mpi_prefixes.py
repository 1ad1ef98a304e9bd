"""Modified copies of MPICH, some of which claim to be MVAPICH2."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.conftest import MPICH_PREFIX

MVAPICH2 = "MVAPICH2 2.3.7 Wed Mar 02 22:00:00 EST 2022 ch3:mrail"


def fake_mvapich2(folder: Path, version: str = MVAPICH2, *, with_library: bool = False) -> Path:
    """Make a prefix with MPICH's Hydra and an mpiname that reports MVAPICH2.

    with_library: also copy MPICH's library; otherwise ranks load the one that their program finds.
    """
    programs = folder / "mvapich2" / "bin"
    programs.mkdir(parents=True)
    for name in ("mpiexec.hydra", "hydra_pmi_proxy"):
        shutil.copy(MPICH_PREFIX / "bin" / name, programs / name)
    (programs / "mpiname").write_text(f"#!/bin/sh\necho '{version}'\n")
    (programs / "mpiname").chmod(0o755)
    if with_library:
        shutil.copytree(MPICH_PREFIX / "lib", folder / "mvapich2" / "lib", ignore=shutil.ignore_patterns("python*"))
    return programs.parent


def second_mpich(folder: Path) -> Path:
    """Make a second prefix of the same MPICH, with copies of its launcher and library."""
    prefix = folder / "other"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    for name in ("mpiexec.hydra", "hydra_pmi_proxy", "mpichversion"):
        shutil.copy(MPICH_PREFIX / "bin" / name, prefix / "bin" / name)
    shutil.copy(MPICH_PREFIX / "lib" / "libmpi.so.12", prefix / "lib" / "libmpi.so.12")
    (prefix / "lib" / "mpich").symlink_to(MPICH_PREFIX / "lib" / "mpich")
    return prefix


def fake_mvapich2_library(folder: Path) -> Path:
    """As `second_mpich`, with a library that reports MVAPICH2 and no program that says so."""
    prefix = second_mpich(folder)
    library = prefix / "lib" / "libmpi.so.12"
    before, after = b"MPICH Version:      %s\n", b"MVAPICH2            %s\n"
    assert library.read_bytes().count(before) == 1
    library.write_bytes(library.read_bytes().replace(before, after))
    (prefix / "bin" / "mpichversion").unlink()
    return prefix


def remove_mpi_io(prefix: Path) -> Path:
    """Rename the MPI_File functions in the prefix's library, as if it was built without MPI-IO."""
    library = prefix / "lib" / "libmpi.so.12"
    sections = subprocess.check_output(["readelf", "--section-headers", "--wide", library], text=True)
    names = re.search(r" \.dynstr +STRTAB +\w+ (\w+) (\w+)", sections)
    assert names is not None
    start, data = int(names[1], 16), library.read_bytes()
    end = start + int(names[2], 16)
    library.write_bytes(data[:start] + data[start:end].replace(b"MPI_File_", b"MPI_FILE_") + data[end:])
    return prefix
