"""`hvscale compare-settings`: interleaved runs, whose results agree with the document."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hvscale.launch.mpi.horovod_build import library_in
from tests.conftest import Run, requested_env, requested_knobs, run_json

PROGRAM = """
import numpy, time
from mpi4py import MPI
began = time.monotonic()
for step in range(20):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numpy.ones(1 << 14, numpy.float32))
print("images/s:", 20 / (time.monotonic() - began))
"""


def test_settings_are_interleaved_and_compared(
    hvscale: Run, program: Callable[[str], Path], open_page: Callable[..., Page], tmp_path: Path
) -> None:
    done = hvscale(
        *("compare-settings", "mpi,mpi-opt", "-np", "2", "--run", "compared", "--repeat", "2", "--json"),
        *("--metric", "images/s: (?P<per_rank>[0-9.]+)", "--", "python", program(PROGRAM)),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "hvscale/compare-settings/2"
    folder = tmp_path / "compared"
    order = sorted((run_json(folder / name)["started_at"], name) for row in document["rows"] for name in row["runs"])
    assert [name for _, name in order] == ["mpi-repeat-1", "mpi-opt-repeat-1", "mpi-repeat-2", "mpi-opt-repeat-2"]
    first, second = document["rows"]
    assert first["gain"] is None
    for row in (first, second):
        for name, throughput in zip(row["runs"], row["throughputs"], strict=True):
            record = run_json(folder / name)
            assert requested_knobs(record) == row["knobs"]
            output = "".join(log.read_text() for log in sorted((folder / name / "logs").glob("rank-*.log")))
            assert throughput == pytest.approx(sum(map(float, re.findall(r"images/s: ([0-9.]+)", output))))
    assert first["knobs"] == {"cuda_ipc": "off", "registration_cache": "off", "visible_devices": "own"}
    # Open MPI has no setting for a device list, so `visible_devices` is `all`.
    assert second["knobs"] == {"cuda_ipc": "on", "registration_cache": "on", "visible_devices": "all"}
    ratios = [after / before for before, after in zip(first["throughputs"], second["throughputs"], strict=True)]
    assert second["gain"]["mean"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert second["gain"]["low"] <= second["gain"]["mean"] <= second["gain"]["high"]
    environment = requested_env(run_json(folder / "mpi-repeat-1"))
    assert {"OMPI_MCA_mpi_leave_pinned": "0", "UCX_TLS": "^cuda_ipc"}.items() <= environment.items()
    [profile] = document["profiles"]
    assert (profile["run_before"], profile["run_after"]) == (
        str(folder / "mpi-repeat-2"),
        str(folder / "mpi-opt-repeat-2"),
    )
    assert any(row["operation"] == "allreduce" and row["calls_before"] > 0 for row in profile["rows"])

    assert f"plot: {folder}/compare-settings.html" in done.stderr
    page = open_page(folder / "compare-settings.html", width=390)
    starts, means = (page.locator("#results .scatterlayer .trace").nth(trace) for trace in (0, 1))
    expect(starts.locator(".points path")).to_have_count(4)
    expect(means.locator(".points path")).to_have_count(2)
    expect(page.locator("#change .points path")).to_have_count(1)
    expect(page.locator("#messages-0 .barlayer .bars")).to_have_count(2)
    knobs = page.locator("tr", has_text="cuda_ipc").locator("td").all_inner_texts()
    assert [text.strip() for text in knobs] == ["cuda_ipc", "off", "on"]
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")

    files = {path: path.read_bytes() for path in folder.glob("compare-settings.*")}
    again = hvscale(
        *("compare-settings", "mpi,mpi-opt", "-np", "2", "--run", "compared", "--repeat", "2", "--json"),
        *("--metric", "image/s: (?P<per_rank>[0-9.]+)", "--", "python", tmp_path / "program.py"),
    )
    assert (again.returncode, again.stdout) == (2, "")
    assert "matches no line" in again.stderr
    assert {path: path.read_bytes() for path in folder.glob("compare-settings.*")} == files


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "mpi",
            "name at least two different settings: mpi, mpi-reg, mpi-opt, nccl, defaults, or files such as settings.toml",
        ),
        (
            "mpi,fast",
            "fast: unknown settings; use mpi, mpi-reg, mpi-opt, nccl, defaults, or files such as settings.toml",
        ),
    ],
)
def test_an_invalid_request_starts_nothing(hvscale: Run, tmp_path: Path, settings: str, message: str) -> None:
    done = hvscale("compare-settings", settings, "-np", "2", "--run", "compared", "--", "true")
    assert done.returncode == 2
    assert done.stderr.strip() == f"hvscale: {settings.split(',')[-1] + ': ' if settings == 'mpi' else ''}{message}"
    assert not (tmp_path / "compared").exists()


def test_nccl_needs_a_horovod_built_with_it(hvscale: Run, tmp_path: Path) -> None:
    library = library_in(Path(sys.prefix))
    if library is not None and b"ncclAllReduce" in library.read_bytes():
        pytest.skip("this Horovod is built on NCCL")
    done = hvscale("compare-settings", "mpi,nccl", "-np", "2", "--run", "compared", "--", "true")
    assert done.returncode == 2
    assert "nccl: this job's Horovod is built without NCCL" in done.stderr
    assert not (tmp_path / "compared").exists()
