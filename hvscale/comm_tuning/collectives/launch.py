"""Giving a job its decision table: `--collectives TABLE`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hvscale.comm_tuning.collectives.broadcast.call import preload_environment
from hvscale.comm_tuning.collectives.tables.files import TableTarget, environment, write_files
from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, read_table
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library, RunFolder, RunRecord, cannot_write, write_atomically
from hvscale.launch import flavours
from hvscale.launch.mpi import mpi_library
from hvscale.launch.mpi.hydra import SONAME
from hvscale.launch.supervision.processes import NP_VARIABLE

COMPACT = "collectives.table"
FILES = "collectives"
NCCL, NCCL_PLUGIN, NCCL_FILE = "nccl", "NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE"


@dataclass(frozen=True)
class Collectives:
    """An instrument of a launch: the ranks' library decides by the table, whose files for it lie in
    the run's folder, and where the table has a broadcast of ours the ranks broadcast by it, in its
    compact form.
    """

    path: Path

    @cached_property
    def table(self) -> CollectivesTable:
        """Raises RequestError for one that cannot be read."""
        return read_table(self.path)

    def check(self, mpi: str) -> None:
        """Raises RequestError for a table that cannot be read, or says more than the library can be
        told, and without MPI for one that is not NCCL's.
        """
        path, table = self.path, self.table
        if not flavours.get(mpi).has_mpi and (table.mpi != NCCL or table.broadcasts):
            raise RequestError(f"--collectives {path}: it is for MPI's collectives, and this job is --mpi {mpi}")
        on_a_node: dict[tuple[str, int], int] = {}
        for rule in table.rule if table.mpi == mpi and table.names_algorithms else []:
            known = on_a_node.setdefault((rule.operation, rule.np), rule.ranks_per_node)
            if known != rule.ranks_per_node:
                raise RequestError(
                    f"--collectives {path}: it has {rule.operation} rules for {known} and {rule.ranks_per_node} ranks on a node, np {rule.np}, and "
                    f"{mpi} can be told but one of them: keep those of this job"
                )

    def __call__(self, run: RunFolder, record: RunRecord, passed: Mapping[str, str]) -> dict[str, str]:
        """What the user has set himself goes before the table. One of another flavour says nothing
        of this library's algorithms.
        """
        library, told = record.library, dict[str, str]()
        # Beside MPI or Gloo a job may have NCCL.
        if self.table.mpi in (library.flavour, NCCL):
            np = int(passed[NP_VARIABLE])
            job = TableTarget(run.path / FILES, self.table, np, np, own_library(library, passed))
            write_files(job)
            told = {name: word for name, word in environment(job).items() if name not in passed}
            if NCCL_FILE in told and NCCL_PLUGIN not in passed:
                record.warnings.append(
                    f"--collectives {self.path}: NCCL takes it by a tuner plug-in alone: name yours with --env {NCCL_PLUGIN}=PATH"
                )
        elif self.table.tells_the_library:
            record.warnings.append(
                f"--collectives {self.path}: it was made with {self.table.mpi}, and this is {library.flavour}, which is told none of its "
                "algorithms and eager limit"
            )
        if not self.table.broadcasts:
            return told
        compact = run.path / COMPACT
        try:
            write_atomically(compact, lambda stream: stream.write(self.table.compact()))
        except OSError as error:
            raise cannot_write(run.path, error) from error
        return {**told, **preload_environment(compact, passed)}


def own_library(library: Library, passed: Mapping[str, str]) -> Path | None:
    """Of MPICH's kind: what LD_LIBRARY_PATH names, or else what lies beside the launcher."""
    folders = [Path(folder) for folder in passed.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    named = next((folder / SONAME for folder in folders if (folder / SONAME).exists()), None)
    return named or mpi_library.library_beside(Path(library.launcher or ""), SONAME)
