"""What a job script does not pass on is refused, not lost."""

from pathlib import Path

import pytest

from tests.conftest import Run


@pytest.mark.parametrize("later", [("--sbatch", "job.sh"), ("--submit",)])
@pytest.mark.parametrize("switch", ["--timeline", "--gradients"])
def test_a_switch_that_a_job_script_loses_is_refused(
    hvscale: Run, tmp_path: Path, later: tuple[str, ...], switch: str
) -> None:
    done = hvscale("profile", *later, switch, "-np", 2, "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith(f"hvscale: {switch} is not passed to a job that Slurm starts later: run ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
