"""Sets control variables of the installed MPI libraries at run time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_SECONDS, MPICH_PREFIX, needs_mpich

SET_VARIABLES = """
import json, sys
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from hvscale.comm_tuning.collectives.measure.mpi_t import ControlVariables, handle_of, loaded_library, value_numbers, read_variable, start_tools

name, words, unknown = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
numbers = value_numbers(loaded_library(), [(name, word) for word in [*words, unknown] if not word.isdigit()])
variables = ControlVariables(loaded_library(), numbers)
start_tools(variables.mpi)
handle = handle_of(variables.mpi, name)
before = read_variable(variables.mpi, handle)
seen = []
for word in words:
    variables.set({name: word})
    seen.append(read_variable(variables.mpi, handle))
knows = [variables.accepts({name: unknown}), variables.accepts({"OMPI_MCA_no_such": "1"}), variables.accepts({name: words[0]})]
kept = read_variable(variables.mpi, handle)
variables.set({})
print(json.dumps({"before": before, "seen": seen, "knows": knows, "kept": kept, "after": read_variable(variables.mpi, handle)}))
"""


def set_and_read(prefix: Path, name: str, words: list[str], unknown: str) -> dict[str, Any]:
    command = [str(prefix / "bin" / "python"), "-c", SET_VARIABLES, name, ",".join(words), unknown]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_open_mpi_variables_set_by_number() -> None:
    found = set_and_read(Path(sys.prefix), "OMPI_MCA_coll_tuned_bcast_algorithm", ["3", "6"], "99")
    assert found == {"before": 0, "seen": [3, 6], "knows": [False, False, True], "kept": 6, "after": 0}


@needs_mpich
def test_mpich_variables_set_by_name() -> None:
    words = ["binomial", "scatter_ring_allgather"]
    found = set_and_read(MPICH_PREFIX, "MPIR_CVAR_BCAST_INTRA_ALGORITHM", words, "no_such_algorithm")
    first, second = found["seen"]
    assert 0 != first != second != 0
    assert found["knows"] == [False, False, True]
    assert (found["before"], found["kept"], found["after"]) == (0, second, 0)


@pytest.mark.parametrize("library", ["libc.so.6"])
def test_a_library_without_mpi_t_is_rejected(library: str) -> None:
    program = f"from hvscale.comm_tuning.collectives.measure.mpi_t import ControlVariables; ControlVariables({library!r}, {{}}).set({{'A': '1'}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ControlVariableError: the MPI library has no tools interface (MPI_T)" in done.stderr
