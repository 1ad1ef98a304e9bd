"""Installations of MPI that claim to be another one."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.conftest import MPICH_PREFIX

MVAPICH2 = "MVAPICH2 2.3.7 Wed Mar 02 22:00:00 EST 2022 ch3:mrail"


def named_mvapich2(folder: Path, says: str = MVAPICH2, *, with_library: bool = False) -> Path:
    """A prefix in `folder` with MPICH's Hydra and a mpiname that says MVAPICH2, because that
    library cannot be had everywhere.

    `with_library`: MPICH's own library lies in it, too; otherwise ranks take the one that their
    program finds.
    """
    programs = folder / "mvapich2" / "bin"
    programs.mkdir(parents=True)
    for name in ("mpiexec.hydra", "hydra_pmi_proxy"):
        shutil.copy(MPICH_PREFIX / "bin" / name, programs / name)
    (programs / "mpiname").write_text(f"#!/bin/sh\necho '{says}'\n")
    (programs / "mpiname").chmod(0o755)
    if with_library:
        shutil.copytree(MPICH_PREFIX / "lib", folder / "mvapich2" / "lib", ignore=shutil.ignore_patterns("python*"))
    return programs.parent


def other_mpich(folder: Path) -> Path:
    """A second MPICH, of the same release, in a prefix of its own: a launcher, and a library that
    is another file.
    """
    prefix = folder / "other"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    for name in ("mpiexec.hydra", "hydra_pmi_proxy", "mpichversion"):
        shutil.copy(MPICH_PREFIX / "bin" / name, prefix / "bin" / name)
    shutil.copy(MPICH_PREFIX / "lib" / "libmpi.so.12", prefix / "lib" / "libmpi.so.12")
    (prefix / "lib" / "mpich").symlink_to(MPICH_PREFIX / "lib" / "mpich")
    return prefix


def other_mvapich2(folder: Path) -> Path:
    """As `other_mpich`, with a library and an mpiname that both say that they are MVAPICH2."""
    prefix = other_mpich(folder)
    library = prefix / "lib" / "libmpi.so.12"
    before, after = b"MPICH Version:      %s\n", b"MVAPICH2            %s\n"
    assert library.read_bytes().count(before) == 1
    library.write_bytes(library.read_bytes().replace(before, after))
    said = subprocess.check_output([prefix / "bin" / "mpichversion"], text=True)
    (prefix / "bin" / "mpichversion").unlink()
    version = re.search(r"\d+\.\d+\S*", said)
    assert version is not None
    (prefix / "bin" / "mpiname").write_text(f"#!/bin/sh\necho 'MVAPICH2 {version[0]} Wed Mar 02 2022 ch3:mrail'\n")
    (prefix / "bin" / "mpiname").chmod(0o755)
    return prefix


def without_mpi_io(prefix: Path) -> Path:
    """Take MPI_File_open and its kin out of the prefix's library, as in one that was built without
    MPI-IO: nobody finds their names.
    """
    library = prefix / "lib" / "libmpi.so.12"
    sections = subprocess.check_output(["readelf", "--section-headers", "--wide", library], text=True)
    names = re.search(r" \.dynstr +STRTAB +\w+ (\w+) (\w+)", sections)
    assert names is not None
    start, data = int(names[1], 16), library.read_bytes()
    end = start + int(names[2], 16)
    library.write_bytes(data[:start] + data[start:end].replace(b"MPI_File_", b"MPI_FILE_") + data[end:])
    return prefix
