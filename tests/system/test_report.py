"""`hvscale compare` and `report` on real runs; the page is opened in a browser."""

import csv
import json
import shlex
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Run, run_hvscale, wait_until

ROUNDS = 20
SIZE = 200_000
# Rank 1 is LATE seconds late in every round; the report shows the command's arguments.
PROGRAM = f"""
import numpy, os, time
from mpi4py import MPI
world = MPI.COMM_WORLD
data, total = numpy.ones({SIZE}, numpy.uint8), numpy.empty({SIZE}, numpy.uint8)
for _ in range({ROUNDS} * int(os.environ.get("TIMES", "1"))):
    if world.rank == 1:
        time.sleep(float(os.environ.get("LATE", "0")))
    world.Allreduce(data, total)
world.Barrier()
"""
HOROVOD_STEPS = 6
# Each step sends one fused message of two tensors.
HOROVOD_PROGRAM = f"""
import horovod.torch as hvd, os, time, torch
from hvscale import profiling
hvd.init()
for step in range({HOROVOD_STEPS}):
    profiling.step()
    hvd.grouped_allreduce([torch.ones(1000), torch.ones(2000)], name=f"parts.{{step}}")
profiling.step()
if "HOROVOD_TIMELINE" in os.environ:
    time.sleep(1)  # at shutdown Horovod loses timeline events that it has not yet written
"""
HOSTILE = "<script>throw new Error('run')</script>"


@pytest.fixture(scope="module")
def profile_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that profiles the program on two ranks, once for each environment."""

    @cache
    def run(**environment: str) -> Path:
        folder = tmp_path_factory.mktemp("profiled")
        (folder / "program.py").write_text(PROGRAM)
        passed = [word for key in environment for word in ("--env", f"{key}={environment[key]}")]
        done = run_hvscale(folder, "profile", "-np", 2, "--run", "job", *passed, "--", "python", "program.py", HOSTILE)
        assert done.returncode == 0, done.stderr
        return folder / "job"

    return run


@pytest.fixture
def profiled(profile_once: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that gives the test its own run: `profiled("name", LATE="0.02")`."""

    def copy(name: str, **environment: str) -> Path:
        return Path(shutil.copytree(profile_once(**environment), tmp_path / name))

    return copy


def test_compare_names_the_late_rank(hvscale: Run, profiled: Callable[..., Path], tmp_path: Path) -> None:
    before, late = profiled("before"), profiled("late", LATE="0.3")
    done = hvscale("compare", before, late, "--json", "--csv", "table.csv")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "hvscale/compare/1"
    assert (document["np"], document["per"]) == (2, "run")
    (row,) = [row for row in document["rows"] if row["operation"] == "allreduce"]
    assert (row["bytes_min"], row["bytes_max"]) == (128 * 1024 + 1, 16 * 2**20)
    assert row["calls_before"] == row["calls_after"] == 2 * ROUNDS
    assert row["verdict"] == document["total"]["verdict"] == "more"
    with (tmp_path / "table.csv").open() as stream:
        assert [line["operation"] for line in csv.DictReader(stream)] == ["allreduce", "barrier", "total"]
    table = hvscale("compare", before, late).stdout
    assert "128 KiB-16 MiB" in table
    assert "more" in table
    shutil.copytree(before, tmp_path / "copy")
    again = json.loads(hvscale("compare", before, "copy", "--json").stdout)
    verdicts = {row["operation"]: row["verdict"] for row in (*again["rows"], again["total"])}
    # There are too few barriers for an interval.
    assert verdicts == {"allreduce": "no difference", "barrier": "unknown", "total": "no difference"}
    assert again["total"]["gain_percent"] == 0


def test_runs_that_cannot_be_compared_are_a_one_line_error(
    hvscale: Run, profiled: Callable[..., Path], tmp_path: Path
) -> None:
    before, longer = profiled("before"), profiled("longer", TIMES="2")
    (tmp_path / "empty").mkdir()
    assert hvscale("launch", "--run", "bare", "--", "true").returncode == 0
    mixed = tmp_path / "mixed"
    shutil.copytree(before, mixed)
    shutil.copy(longer / "hvprof" / "rank-00001.hvp", mixed / "hvprof" / "rank-00001.hvp")
    for second, message in (
        (longer, "did different work"),
        ("empty", "is not the folder of a run"),
        ("nowhere", "is not a folder"),
        ("bare", "has no profile"),
        (mixed, "mixes files of different runs"),
    ):
        for command in ("compare", "report"):
            done = hvscale(command, before, second)
            assert done.returncode == 2, done.stdout
            assert message in done.stderr
            assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("*.html"))
    assert hvscale("report", before, before, before).returncode == 2
    assert hvscale("report", before, "--output", "nowhere/page.html").returncode == 2


@pytest.fixture
def open_report(open_page: Callable[..., Page]) -> Callable[..., Page]:
    """As `open_page`, but wait until the charts are drawn."""

    def open_report(file: Path, width: int = 1280) -> Page:
        page = open_page(file, width)
        page.wait_for_selector("#seconds .bars")
        return page

    return open_report


def test_the_report_of_one_run(
    open_report: Callable[..., Page], hvscale: Run, profiled: Callable[..., Path], tmp_path: Path
) -> None:
    run = profiled("job")
    (run / "result.json").write_text("{ cut short")
    done = hvscale("report", run, "--trace", "trace.json")
    assert done.returncode == 0, done.stderr
    assert f"trace of {run}: trace.json" in done.stderr
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 2 * (ROUNDS + 1)
    for width in (1280, 390):
        page = open_report(run / "report.html", width)
        assert shlex.join([HOSTILE]) in page.inner_text("header")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#timeline-0 .bars .point").count() > ROUNDS
        assert not page.is_visible("#calls")
        page.click("text=Calls")
        assert page.is_visible("#calls .bars")
        assert not page.is_visible("#seconds")
        page.click("summary")
        assert page.is_visible("text=1: allreduce 128 KiB-16 MiB")


def test_the_report_of_a_job_that_failed_says_so_first(
    open_report: Callable[..., Page], hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script = program(f"{PROGRAM}\nimport sys; sys.exit(5 * world.rank)")
    assert hvscale("profile", "-np", 2, "--run", "job", "--", "python", script).returncode == 3
    assert hvscale("report", "job").returncode == 0
    page = open_report(tmp_path / "job" / "report.html")
    assert page.inner_text("header").splitlines()[-3].endswith("failed")
    first = page.locator("#warnings p").first.inner_text()
    assert first == "the job failed, because of rank 1, exit status 5: the figures are of what ran until then"


def test_charts_follow_the_window_after_their_tab_was_hidden_and_fit_on_paper(
    open_report: Callable[..., Page], hvscale: Run, profiled: Callable[..., Path]
) -> None:
    run = profiled("job")
    assert hvscale("report", run).returncode == 0
    page = open_report(run / "report.html", 1280)
    page.click("text=Calls")
    page.set_viewport_size({"width": 390, "height": 800})
    page.click("[role=tab] >> text=Time")
    width = "Number(document.querySelector('#seconds .main-svg').getAttribute('width'))"
    wait_until(lambda: 0 < page.evaluate(width) <= 390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 800})
    wait_until(lambda: page.evaluate(width) > 660)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_until(lambda: page.evaluate(width) <= 660)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    wait_until(lambda: page.evaluate(width) > 660)


def test_keys_move_between_tabs(open_report: Callable[..., Page], hvscale: Run, profiled: Callable[..., Path]) -> None:
    run = profiled("job")
    assert hvscale("report", run).returncode == 0
    page = open_report(run / "report.html")
    tabs = page.get_by_role("tablist", name="By message size")
    time, calls = (tabs.get_by_role("tab", name=name) for name in ("Time", "Calls"))
    time.focus()
    for key, shown, hidden in (
        ("ArrowRight", calls, time),
        ("ArrowRight", time, calls),
        ("ArrowLeft", calls, time),
        ("Home", time, calls),
        ("End", calls, time),
        ("End", calls, time),
    ):
        page.keyboard.press(key)
        expect(shown).to_be_focused()
        assert [tab.get_attribute("aria-selected") for tab in (shown, hidden)] == ["true", "false"]
    expect(page.get_by_role("tabpanel", name="Calls").locator(".bars").first).to_be_visible()
    assert page.get_by_role("tabpanel").count() == 1
    page.keyboard.press("Tab")  # past the other tab
    expect(page.get_by_role("tabpanel", name="Calls")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(calls).to_be_focused()


def test_the_report_of_a_horovod_job_with_marked_steps(
    open_report: Callable[..., Page], hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script = program(HOROVOD_PROGRAM)
    done = hvscale("profile", "-np", 2, "--timeline", "--run", "job", "--", "python", script)
    assert done.returncode == 0, done.stderr
    assert hvscale("report", "job").returncode == 0
    page = open_report(tmp_path / "job" / "report.html")
    assert page.locator("#phases-0 .bars .point").count() > 0
    assert page.locator("#exposed-0 .scatterlayer .trace").count() == 3
    assert f"{HOROVOD_STEPS} of 2" in page.inner_text("#horovod-0")
    assert page.is_visible("#late-0")
    narrow = open_report(tmp_path / "job" / "report.html", width=390)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_report_of_two_runs(open_report: Callable[..., Page], hvscale: Run, profiled: Callable[..., Path]) -> None:
    before, late = profiled("before"), profiled("late", LATE="0.3")
    done = hvscale("report", before, late)
    assert done.returncode == 0, done.stderr
    page = open_report(late / "comparison.html")
    assert page.locator("#seconds .trace.bars").count() == 2
    page.locator("#seconds .legendtoggle").first.click()
    expect(page.locator("#seconds .trace.bars")).to_have_count(1)
    assert page.is_visible("#timeline-1 .bars")
    assert "LATE" in page.inner_text(".settings .differs >> nth=0") + page.inner_text(".settings")
    assert page.locator("#comparison .more").count() > 0
    last = page.inner_text("#late-1 tr >> nth=1").split()
    assert last[:2] == ["rank", "1"]
    assert int(last[2]) >= ROUNDS * 0.9
