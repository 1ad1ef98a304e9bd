"""Giving a job its decision table: `--collectives TABLE`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvscale.comm_tuning.broadcast.native_library import preload_environment
from hvscale.comm_tuning.collectives_table import CollectivesTable, read_table
from hvscale.errors import RequestError
from hvscale.run_folder import Library, RunFolder, cannot_write, write_atomically

COMPACT = "collectives.table"


@dataclass(frozen=True)
class Collectives:
    """An instrument of a launch: the ranks broadcast by the table, which lies in the run's folder in its compact form."""

    path: Path
    table: CollectivesTable

    @classmethod
    def of(cls, path: Path, mpi: str) -> "Collectives":
        """Raises RequestError for a table that cannot be read, and for a job without MPI."""
        if mpi == "gloo":
            raise RequestError(f"--collectives {path}: it is for MPI's collectives, and this job is --mpi gloo")
        return cls(path, read_table(path))

    def __str__(self) -> str:
        """As the command line has it."""
        return str(self.path)

    def __call__(self, run: RunFolder, library: Library, environment: Mapping[str, str]) -> dict[str, str]:
        compact = run.path / COMPACT
        try:
            write_atomically(compact, lambda stream: stream.write(self.table.compact()))
        except OSError as error:
            raise cannot_write(run.path, error) from error
        return preload_environment(compact, environment)
