"""`hvscale runs` on real runs: figures, the page in a browser, and removals that are killed."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import PROGRAMS, Run, run_json, wait_until

PROGRAM = """
import json, os, time
from mpi4py import MPI
import numpy as np
buffer = np.ones(1 << 20)
begin = time.time()
for step in range(12):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, buffer)
    if MPI.COMM_WORLD.rank == 0:
        with open(os.path.join(os.environ["HVSCALE_RUN"], "steps.jsonl"), "a") as log:
            print(json.dumps({"seconds": time.time() - begin, "images": 16}), file=log)
    begin = time.time()
"""
HOSTILE = "a #1 <b> & 'c'"
FILES = 4000
KILLS = 5


def test_a_listing_agrees_with_the_breakdown_and_its_page_works(
    hvscale: Run, program: Callable[[str], Path], open_page: Callable[..., Page], tmp_path: Path
) -> None:
    script = program(PROGRAM)
    done = hvscale("profile", "-np", 2, "--run", f"runs/{HOSTILE}", "--", "python", script)
    assert done.returncode == 0, done.stderr
    assert hvscale("launch", "--mpi", "gloo", "-np", 3, "--run", "runs/plain", "--", "echo", "<i>").returncode == 0
    assert hvscale("launch", "--mpi", "gloo", "--run", "runs/failing", "--", "false").returncode == 3
    breakdown = json.loads(hvscale("breakdown", f"runs/{HOSTILE}", "--json").stdout)
    assert hvscale("report", f"runs/{HOSTILE}").returncode == 0
    listed = hvscale("runs", "--json", "--html", "pages.html")
    entries = {entry["name"]: entry for entry in json.loads(listed.stdout)["entries"]}
    assert {name: entry["state"] for name, entry in entries.items()} == {
        HOSTILE: "finished",
        "plain": "finished",
        "failing": "failed",
    }
    run = tmp_path / "runs" / HOSTILE
    lifetime = sum(rank["ended_at"] - rank["started_at"] for rank in run_json(run)["ranks"])
    in_collectives = sum(row["seconds"] for row in breakdown["rows"])
    assert entries[HOSTILE]["communication_share"] == pytest.approx(in_collectives / lifetime)
    assert entries[HOSTILE]["images_per_second"] > 0
    assert entries["plain"]["communication_share"] is None
    for width in (1280, 390):
        page = open_page(tmp_path / "pages.html", width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page = open_page(tmp_path / "pages.html")
    rows = page.locator("#runs tbody tr")
    expect(rows).to_have_count(3)
    assert page.locator("svg polyline").count() == 1
    assert page.locator("#runs code").count() == 0  # the other runs have no profile to report
    page.click("th >> text=name")
    assert [row.split("\t")[0].strip() for row in rows.all_inner_texts()] == [HOSTILE, "failing", "plain"]
    page.click("th >> text=np")
    page.click("th >> text=np")
    assert rows.first.inner_text().startswith("plain")
    page.fill("#filter", "echo finished")
    expect(page.locator("#count")).to_have_text("1 of 3")
    target = (tmp_path / "pages.html").parent / "runs" / HOSTILE / "report.html"
    assert page.locator("#runs a").first.evaluate("link => link.href") == target.as_uri().replace("'", "%27")


def test_a_run_whose_hvscale_was_killed_can_be_removed(hvscale: Run, tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = ["launch", "--run", "killed", "--", "sh", "-c", f"touch {started}; exec sleep 1200"]
    with subprocess.Popen([PROGRAMS / "hvscale", *command], cwd=tmp_path, start_new_session=True) as job:
        wait_until(started.exists)
        os.killpg(job.pid, signal.SIGKILL)
    hvscale("cleanup")
    assert "interrupted" in hvscale("runs", tmp_path).stdout
    done = hvscale("runs", tmp_path, "--prune", "--state", "interrupted", "--yes")
    assert (done.returncode, (tmp_path / "killed").exists()) == (0, False), done.stderr
    assert "removed 1 of 1 runs and studies" in done.stderr


def test_a_killed_removal_leaves_whole_runs_or_none(hvscale: Run, tmp_path: Path) -> None:
    """Each kill comes at another moment; what has its own name has all its files."""
    assert hvscale("launch", "--mpi", "gloo", "--run", "runs/0", "--", "true").returncode == 0
    runs = tmp_path / "runs"
    for number in range(FILES):
        (runs / "0" / "logs" / f"more-{number}").touch()
    files = len(list((runs / "0" / "logs").iterdir()))
    for name in ("1", "2", "3"):
        shutil.copytree(runs / "0", runs / name)
    command = [str(PROGRAMS / "hvscale"), "runs", "--prune", "--state", "finished", "--yes"]
    for kill in range(KILLS):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda process=process: process.poll() is not None or any(runs.glob(".removed-*")))  # type: ignore[misc]
        time.sleep(0.03 * kill)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in runs.iterdir():
            if not path.name.startswith("."):
                assert len(list((path / "logs").iterdir())) == files
                assert run_json(path)["state"] == "finished"
    done = hvscale("runs", "--prune", "--state", "finished", "--yes")
    assert done.returncode == 0, done.stderr
    assert list(runs.iterdir()) == []
