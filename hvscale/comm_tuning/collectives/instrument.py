"""Makes a job use a decision table: `--collectives TABLE`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hvscale.comm_tuning.collectives.broadcast import preload_environment
from hvscale.comm_tuning.collectives.tables.files import TableTarget, environment, write_files
from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, read_table
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library, RunFolder, RunRecord, cannot_write, write_atomically
from hvscale.launch import flavours
from hvscale.launch.mpi import mpi_library
from hvscale.launch.mpi.hydra import SONAME
from hvscale.launch.supervision.processes import NP_VARIABLE

COMPACT_FILE = "collectives.table"
FILES_FOLDER = "collectives"
NCCL, NCCL_PLUGIN, NCCL_FILE = "nccl", "NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE"


@dataclass(frozen=True)
class CollectivesInstrument:
    """The instrument of a launch that writes a table's files into the run folder.

    The variables that it returns make the ranks' library read these files. If the table uses
    hvscale's own broadcasts, they also preload the C library that replaces MPI_Bcast.
    """

    path: Path

    @cached_property
    def table(self) -> CollectivesTable:
        """Raises RequestError for a file that is unreadable or invalid."""
        return read_table(self.path)

    def check(self, mpi: str) -> None:
        """Raises RequestError if the table is invalid or cannot be used with this flavour."""
        path, table = self.path, self.table
        if not flavours.get(mpi).has_mpi and (table.mpi != NCCL or table.has_own_broadcasts):
            raise RequestError(
                f"--collectives {path}: this table needs MPI, and the job uses --mpi {mpi}: choose an MPI with --mpi"
            )
        layouts: dict[tuple[str, int], int] = {}
        for rule in table.rule if table.mpi == mpi and table.names_algorithms else []:
            known = layouts.setdefault((rule.operation, rule.np), rule.ranks_per_node)
            if known != rule.ranks_per_node:
                raise RequestError(
                    f"--collectives {path}: it has {rule.operation} rules for {known} and {rule.ranks_per_node} ranks per node at np {rule.np}, but "
                    f"{mpi} supports only one layout: keep the rules for this job's layout"
                )

    def __call__(self, run: RunFolder, record: RunRecord, passed: Mapping[str, str]) -> dict[str, str]:
        """Variables that the user has set take precedence over the table's."""
        library, variables = record.library, dict[str, str]()
        # A job over MPI or Gloo may also use NCCL.
        if self.table.mpi in (library.flavour, NCCL):
            np = int(passed[NP_VARIABLE])
            target = TableTarget(run.path / FILES_FOLDER, self.table, np, np, find_libmpi(library, passed))
            write_files(target)
            variables = {name: value for name, value in environment(target).items() if name not in passed}
            if NCCL_FILE in variables and NCCL_PLUGIN not in passed:
                record.warnings.append(
                    f"--collectives {self.path}: NCCL reads it only through a tuner plug-in: add --env {NCCL_PLUGIN}=PATH"
                )
        elif self.table.configures_library:
            record.warnings.append(
                f"--collectives {self.path}: the table was made with {self.table.mpi}, but this job uses {library.flavour}: its "
                "algorithms and eager limit are not applied"
            )
        if not self.table.has_own_broadcasts:
            return variables
        compact = run.path / COMPACT_FILE
        try:
            write_atomically(compact, lambda stream: stream.write(self.table.compact()))
        except OSError as error:
            raise cannot_write(run.path, error) from error
        return {**variables, **preload_environment(compact, passed)}


def find_libmpi(library: Library, passed: Mapping[str, str]) -> Path | None:
    """The libmpi of an MPICH-like flavour: from LD_LIBRARY_PATH, else beside the launcher."""
    folders = [Path(folder) for folder in passed.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    named = next((folder / SONAME for folder in folders if (folder / SONAME).exists()), None)
    return named or mpi_library.library_beside(Path(library.launcher or ""), SONAME)
