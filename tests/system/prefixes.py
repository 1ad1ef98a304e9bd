"""Installations of MPI that claim to be another one."""

import shutil
from pathlib import Path

from tests.conftest import MPICH_PREFIX

MVAPICH2 = "MVAPICH2 2.3.7 Wed Mar 02 22:00:00 EST 2022 ch3:mrail"


def named_mvapich2(folder: Path, says: str = MVAPICH2, *, with_library: bool = False) -> Path:
    """A prefix in `folder` with MPICH's Hydra and a mpiname that says MVAPICH2, because that library cannot be had everywhere.

    `with_library`: MPICH's own library lies in it, too; otherwise ranks take the one that their program finds.
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
