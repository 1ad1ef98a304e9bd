"""What a job script does not pass on is refused, not lost."""

import os
from pathlib import Path

import pytest

from tests.conftest import Run


@pytest.mark.parametrize("later", [("--sbatch", "job.sh"), ("--submit",)])
@pytest.mark.parametrize("switch", ["--timeline", "--gradients", "--autotune-steps=50"])
def test_a_switch_that_a_job_script_loses_is_refused(
    hvscale: Run, tmp_path: Path, later: tuple[str, ...], switch: str
) -> None:
    done = hvscale("profile", *later, switch, "-np", 2, "--", "true")
    assert done.returncode == 2
    flag = switch.partition("=")[0]
    assert done.stderr.startswith(f"hvscale: {flag} is not passed to a job that Slurm starts later: run ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("profile --sbatch job.sh --placement netns", "--sbatch does not apply to --placement netns, only to slurm"),
        ("launch --sbatch job.sh --placement host", "--sbatch does not apply to --placement host, only to slurm"),
        ("launch --submit --placement docker:rank --link 1gbit", "--submit does not apply to --placement docker:rank"),
        ("launch --submit --link 1gbit", "--link does not apply to --placement slurm, only to docker:node"),
        ("profile --sbatch job.sh --placement elsewhere", "elsewhere: unknown placement. Known: docker:node, "),
    ],
)
def test_options_of_another_placement_are_refused(
    hvscale: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    done = hvscale(*words.split(), "--", "true")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--bins=pow2", "--json", "--csv=table.csv", "--no-explain", "--per-rank"])
def test_options_of_the_table_are_refused(hvscale: Run, tmp_path: Path, option: str) -> None:
    done = hvscale("profile", "--sbatch", "job.sh", option, "--", "true")
    flag = option.partition("=")[0]
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"hvscale: {flag} is not passed on to a job script: leave it out, and run ")
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_slurm_rejects_leaves_no_run_folder(
    hvscale: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    sbatch = tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    done = hvscale("launch", "--submit", "--run", "job", "--", "true", PATH=f"{sbatch.parent}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (2, "hvscale: Slurm rejected the job: no such partition\n")
    assert not (tmp_path / "job").exists()


def test_a_job_script_is_written_for_slurm(hvscale: Run, tmp_path: Path) -> None:
    for placement in ((), ("--placement", "slurm")):
        done = hvscale("profile", "--sbatch", "job.sh", "--nodes", 2, *placement, "--", "true")
        assert done.returncode == 0, done.stderr
        assert "--placement slurm" in (tmp_path / "job.sh").read_text()


@pytest.mark.parametrize("option", ["--run=a\nrun", "--sbatch-option=--comment=a\n#SBATCH --exclusive"])
def test_a_job_script_has_no_option_with_a_line_break(hvscale: Run, tmp_path: Path, option: str) -> None:
    done = hvscale("launch", "--sbatch", "job.sh", "--run", "job", option, "--", "true")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.endswith(" has a line break, and sbatch reads each option from one line")
    assert list(tmp_path.iterdir()) == []
