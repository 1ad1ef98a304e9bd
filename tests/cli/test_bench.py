"""`hvscale bench`: options that would have no effect."""

from pathlib import Path

import pytest

from hvscale.bench.collectives.backends import check_mpi
from hvscale.cli.commands.bench import warn_of_unused_table
from tests.conftest import Run


@pytest.mark.parametrize("words", [("allreduce", "-np", 2), ("param-server",)])
def test_another_mpi_than_that_of_the_back_ends_is_refused(
    hvscale: Run, tmp_path: Path, words: tuple[object, ...]
) -> None:
    done = hvscale("bench", *words, "--mpi", "gloo", "--backend", "openmpi")
    assert (done.returncode, done.stdout) == (2, "")
    message = "--mpi gloo, but --backend names back ends of openmpi: leave out --mpi, or add mpi to --backend"
    assert done.stderr == f"hvscale: {message}\n"
    assert list(tmp_path.iterdir()) == []


def test_an_mpi_beside_a_back_end_without_mpi_is_accepted() -> None:
    """As in a script that passes the same options to every benchmark."""
    check_mpi("mpich", ["gloo"])
    check_mpi("mpich", ["openmpi", "mpich", "gloo"])


def test_counters_of_a_program_that_is_not_timed_are_refused(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale("bench", "app", "network", "--counters")
    message = "--counters is for programs that are timed as a whole, and network is not: leave it out"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"hvscale: {message}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "operation", "warns"), [("", "gather", True), ("", "allreduce", False), ("1024", "gather", False)]
)
def test_a_table_without_a_rule_for_the_collective_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str, operation: str, warns: bool
) -> None:
    path = tmp_path / "table.toml"
    eager = f"eager_limit_bytes = {limit}\n" if limit else ""
    rule = 'operation = "allreduce"\nnp = 2\nranks_per_node = 2\nalgorithm = "library"\n'
    path.write_text(f'schema = "hvscale/collectives/1"\nmpi = "openmpi"\n{eager}[[rule]]\n{rule}')
    warn_of_unused_table(path, operation)
    warning = f"hvscale: warning: --collectives {path}: the table has no rule for gather, so it changes nothing here\n"
    assert capsys.readouterr().err == (warning if warns else "")
