"""`hvscale bench`: options that would have no effect."""

from pathlib import Path

import pytest

from hvscale.cli.commands.bench import warn_of_unused_table
from tests.conftest import Run


@pytest.mark.parametrize("words", [("allreduce", "-np", 2), ("param-server",)])
def test_an_mpi_that_starts_no_back_end_is_refused(hvscale: Run, tmp_path: Path, words: tuple[object, ...]) -> None:
    done = hvscale("bench", *words, "--mpi", "gloo", "--backend", "openmpi")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hvscale: --mpi gloo starts none of these back ends: leave it out, or add mpi to --backend\n"
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
