"""Settings that libraries report in run.json, and a warning for each that was not applied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import Run, needs_mpich, run_json

PROGRAM = """
import horovod.torch as hvd, torch
hvd.init()
hvd.allreduce(torch.ones(10))
"""


def start(hvscale: Run, script: Path, tmp_path: Path, *options: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Run the script on two ranks.

    Return run.json's settings by library name, and the warnings in the terminal.
    """
    done = hvscale("launch", "-np", "2", "--run", "job", *options, "--", "python", script)
    assert done.returncode == 0, done.stderr
    record = run_json(tmp_path / "job")
    shown = [line for line in done.stderr.splitlines() if line.startswith("hvscale: warning: ")]
    assert [f"hvscale: warning: {text}" for text in record["warnings"]] == shown
    return {reported["library"].split()[0]: reported for reported in record["settings_in_effect"]}, shown


def test_open_mpi_ucx_and_horovod_report_settings(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    requested = {
        "OMPI_MCA_btl_tcp_eager_limit": "64K",
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
        "OMPI_MCA_coll_tuned_bcast_algorithm": "77",
        "OMPI_MCA_coll_tuned_nonsense": "1",
        "UCX_TLS": "sm,self",
        "UCX_NONSENSE": "1",
        "HOROVOD_CYCLE_TIME": "2",
        "HOROVOD_FUSION_TRESHOLD": "1",
    }
    options = [word for name, value in requested.items() for word in ("--env", f"{name}={value}")]
    reported, shown = start(hvscale, program(PROGRAM), tmp_path, "--transport", "ucx", *options)
    assert reported["Open"]["settings"]["btl_tcp_eager_limit"] == "65536"
    assert reported["Open"]["settings"]["pml"] == "ucx"
    assert reported["Open"]["settings"]["coll_tuned_allreduce_algorithm"] == "ring"
    assert reported["Open"]["not_applied"] == {
        "OMPI_MCA_coll_tuned_bcast_algorithm": "77 was requested, ignore is in effect",
        "OMPI_MCA_coll_tuned_nonsense": "Open MPI has no such parameter",
    }
    assert reported["UCX"]["not_applied"] == {"UCX_NONSENSE": "UCX has no such variable"}
    assert reported["Horovod"]["not_applied"] == {"HOROVOD_FUSION_TRESHOLD": "Horovod has no such variable"}
    for name in ("coll_tuned_bcast_algorithm", "coll_tuned_nonsense", "UCX_NONSENSE", "HOROVOD_FUSION_TRESHOLD"):
        assert sum(name in line for line in shown) == 1


@needs_mpich
def test_mpich_reports_settings(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    requested = {
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
        "MPIR_CVAR_BCAST_SHORT_MSG_SIZE": "4096",
        "MPIR_CVAR_ENABLE_GPU": "1",
        "MPIR_CVAR_NONSENSE": "1",
        # MPICH and UCX print to stdout then.
        "MPIR_CVAR_DEBUG_SUMMARY": "1",
        "UCX_LOG_LEVEL": "info",
    }
    options = [word for name, value in requested.items() for word in ("--env", f"{name}={value}")]
    reported, shown = start(hvscale, program(PROGRAM), tmp_path, "--mpi", "mpich", *options)
    assert reported["MPICH"]["settings"]["MPIR_CVAR_BCAST_SHORT_MSG_SIZE"] == "4096"
    assert reported["MPICH"]["not_applied"] == {
        # The wheel is built without GPUs.
        "MPIR_CVAR_ENABLE_GPU": "1 was requested, 0 is in effect",
        "MPIR_CVAR_NONSENSE": "MPICH has no such variable",
    }
    assert len(shown) == 2


def test_no_request_no_warning(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    reported, shown = start(hvscale, program(PROGRAM), tmp_path)
    assert shown == []
    assert all(not entry["not_applied"] for entry in reported.values())
