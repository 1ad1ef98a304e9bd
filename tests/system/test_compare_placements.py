"""`hvscale compare-placements`: interleaved runs on this machine and in namespaces, and a failed
run.
"""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, run_json

# In the namespaces rank 1 fails while the file `mood` contains "bad".
PROGRAM = """
import os, sys, time
from pathlib import Path
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
began = time.monotonic()
for _ in range(40):
    world.Allreduce(MPI.IN_PLACE, numpy.ones(1 << 15))
print(f"speed {40 / (time.monotonic() - began):.6f}", flush=True)
if world.rank == 1 and "netns" in os.environ["HVSCALE_RUN"] and Path("mood").read_text() == "bad":
    sys.exit("this rank is unwell")
"""


def compared(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "compare-placements.json").read_text())
    return document


@pytest.mark.usefixtures("namespaces")
def test_placements_are_interleaved_and_a_failed_run_is_retried_on_resume(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script, behaviour, folder = program(PROGRAM), tmp_path / "mood", tmp_path / "compared"
    command = (
        "compare-placements",
        "host,netns",
        "-np",
        "2",
        "--run",
        "compared",
        "--repeat",
        "2",
        "--link",
        "200mbit",
    )

    behaviour.write_text("bad")
    done = hvscale(*command, "--", "python", script)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].strip() == "this rank is unwell"
    assert "hvscale: netns: rank 1 on" in done.stderr
    assert "--link does not apply to host, only to netns" in done.stderr
    document = compared(folder)
    assert (document["state"], document["measured_by"]) == ("failed", "seconds")
    runs = [(run["name"], run["repeat"], run["problem"] is None) for run in document["runs"]]
    assert runs == [("host", 1, True), ("netns", 1, False), ("host", 2, True)]
    (row,) = document["rows"]
    assert (row["placement"], row["runs"], row["overhead_percent"]) == ("host", 2, None)
    kept = {run: (run / "run.json").read_bytes() for run in folder.glob("*-repeat-*")}

    behaviour.write_text("good")
    again = hvscale(*command, "--csv", "table.csv", "--json", "--", "python", script)
    assert again.returncode == 0, again.stderr
    assert {run: (run / "run.json").read_bytes() for run in kept} == kept
    document = json.loads(again.stdout)
    assert document == compared(folder)
    assert (document["schema"], document["state"]) == ("hvscale/compare-placements/2", "finished")
    assert [(run["name"], run["folder"]) for run in document["runs"]] == [
        ("host", "host-repeat-1"),
        ("netns", "netns-repeat-1-attempt-2"),
        ("host", "host-repeat-2"),
        ("netns", "netns-repeat-2"),
    ]
    for run in document["runs"]:
        record = run_json(folder / run["folder"])
        assert record["placement"] == run["name"]
        ranks = record["ranks"]
        slowest = max(rank["ended_at"] for rank in ranks) - max(rank["started_at"] for rank in ranks)
        assert run["seconds"] == pytest.approx(slowest)
        assert run["throughput"] is None
    host, netns = ([run["seconds"] for run in document["runs"] if run["name"] == name] for name in ("host", "netns"))
    overhead = 100 * ((netns[0] * netns[1] / host[0] / host[1]) ** 0.5 - 1)
    base, row = document["rows"]
    assert base["overhead_percent"] is None
    assert row["overhead_percent"] == pytest.approx(overhead)
    assert row["overhead_percent_low"] <= row["overhead_percent"] <= row["overhead_percent_high"]
    (profile,) = document["profiles"]
    assert (profile["run_before"], profile["run_after"]) == (
        str(folder / "host-repeat-2"),
        str(folder / "netns-repeat-2"),
    )
    (messages,) = profile["rows"]
    assert (messages["operation"], messages["calls_before"], messages["calls_after"]) == ("allreduce", 80, 80)
    table = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [float(one["seconds"]) for one in table] == [one["seconds"] for one in document["rows"]]

    # With --metric the existing runs are read again; nothing is started.
    by_metric = hvscale(*command, "--metric", "speed (?P<per_rank>[0-9.]+)", "--", "python", script)
    assert by_metric.returncode == 0, by_metric.stderr
    document = compared(folder)
    assert document["measured_by"] == "throughput"
    assert len(list(folder.glob("*-repeat-*"))) == 5
    for run in document["runs"]:
        logs = (folder / run["folder"] / "logs").glob("rank-*.log")
        speeds = [float(speed) for log in logs for speed in re.findall(r"speed ([0-9.]+)", log.read_text())]
        assert run["throughput"] == pytest.approx(sum(speeds))
    assert "overhead: time over host's, round by round" in by_metric.stdout
    # On a busy machine the two may not differ.
    assert re.search("netns-repeat-2: (communication takes|no difference in communication)", by_metric.stdout)

    html = (folder / "compare-placements.html").read_text()
    assert "overhead: time over host&#39;s, round by round" in html
    assert re.search("netns-repeat-2: (communication takes|no difference in communication)", html)

    other = hvscale(*command[:-1], "100mbit", "--", "python", script)
    assert other.returncode == 2
    assert "its launch differs" in other.stderr.splitlines()[-1]


def test_an_invalid_request_is_one_line_and_status_2(hvscale: Run, tmp_path: Path) -> None:
    environment = {"DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}
    done = hvscale(
        "compare-placements", "host,docker:node", "-np", "2", "--run", "compared", "--", "true", **environment
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "compared").exists()
