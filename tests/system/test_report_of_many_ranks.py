"""The report, the tables and the trace of jobs of up to 512 ranks; the page is opened in a
browser.
"""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from hvscale.profiling.compare import read_profiled_run
from hvscale.profiling.read.profile_file import RECORDS_START
from hvscale.studies.run_report.trace import trace_profiled_run, write_trace
from tests.conftest import Run
from tests.profiling.large_job import SIZES, LargeJob

SCREENS, SCREEN = 10, 900
MAX_BYTES = 6_000_000


def measured(open_page: Callable[..., Page], file: Path) -> Page:
    """The opened page, which is not too large, too long or too wide."""
    assert file.stat().st_size < MAX_BYTES
    page = open_page(file)
    page.wait_for_selector("#seconds .bars")
    assert page.evaluate("document.documentElement.scrollHeight") <= SCREENS * SCREEN
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    return page


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (16, 2), (512, 64)])
def test_the_page_stays_short_and_names_the_worst_ranks(
    ranks: int, nodes: int, hvscale: Run, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    late, slow = ranks // 3, ranks // 2 + 1
    LargeJob(ranks, nodes, late=frozenset({late}), slow=frozenset({slow})).write(tmp_path / "run")
    done = hvscale("report", "run", "--bins", "pow2")
    assert done.returncode == 0, done.stderr
    page = measured(open_page, tmp_path / "run" / "report.html")
    labels = page.locator("#timeline-0 .yaxislayer-above text, #timeline-0 .yaxislayer-below text").all_text_contents()
    rows = labels[::-1]  # the lowest label comes first
    if ranks == 2:
        assert [row.strip() for row in rows] == ["rank 0", "rank 1"]
        assert not page.locator("#map-0").count()
        return
    assert [row.split()[1] for row in rows][:2] == [str(late), str(slow)]
    assert len(rows) == 3
    assert "typical" in rows[2]
    first = page.locator("#first-0 td").all_inner_texts()[:4]
    assert first[:2] == [f"rank {late}", f"node{late * nodes // ranks:03d}"]
    assert first[3].startswith("arrives last")
    assert page.locator("#map-0 .heatmaplayer image").count() == 2
    assert page.locator("#ranks-0 .histograms .chart .bars").count() >= 6
    for histogram in page.locator("#ranks-0 .histograms .chart").all():
        assert histogram.locator(".ytick").count() >= 3
    assert f"np {ranks} on {nodes} nodes" in page.inner_text("header")
    narrow = open_page(tmp_path / "run" / "report.html", 390)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390


def test_two_runs_of_many_ranks_with_much_to_say(hvscale: Run, open_page: Callable[..., Page], tmp_path: Path) -> None:
    job = LargeJob(96, 12, late=frozenset(range(0, 40, 4)), late_ns=8_000_000)
    for name in ("before", "after"):
        run = job.write(tmp_path / name, missing=frozenset({95}))
        for rank in range(20):  # a warning each
            with (run.hvprof / f"rank-{rank:05d}.hvp").open("r+b") as stream:
                stream.truncate(stream.seek(0, 2) - 100)
    done = hvscale("report", "before", "after")
    assert done.returncode == 4, done.stderr
    assert "the report cannot be trusted because a profile is incomplete" in done.stderr.splitlines()[-1]
    assert done.stderr.count("; no profile of rank 95: ") == 2
    page = measured(open_page, tmp_path / "after" / "comparison.html")
    assert "20 profiles are truncated" in page.inner_text("#warnings")
    assert page.locator("#first-0 tr").count() == 9
    assert page.locator("#map-1 .heatmaplayer image").count() == 2


def test_the_tables_of_many_ranks(hvscale: Run, tmp_path: Path) -> None:
    LargeJob(512, 64, late=frozenset({300})).write(tmp_path / "run")
    done = hvscale("breakdown", "run", "--per-rank", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < 100
    assert max(map(len, lines)) <= 80
    at = next(place for place, line in enumerate(lines) if line.strip() == "by rank")
    assert lines[at + 3].split()[:2] == ["300", "node037"]
    assert "496 more ranks: hvscale breakdown --json or --csv lists all" in done.stdout
    assert "48 more nodes" in done.stdout
    document = json.loads(hvscale("breakdown", "run", "--json", "--csv", "table.csv").stdout)
    with (tmp_path / "table.csv").open() as stream:
        lines_of_ranks = [line for line in csv.DictReader(stream) if not line["operation"]]
    figures = {name: [str(row[name]) for row in document["by_rank"]] for name in document["by_rank"][0]}
    assert {name: [line[name] for line in lines_of_ranks] for name in figures} == figures
    assert float(lines_of_ranks[300]["caused_waiting_seconds"]) > 1
    assert [row["rank"] for row in document["by_rank"]] == list(range(512))
    assert [row["node"] for row in document["by_node"]] == [f"node{node:03d}" for node in range(64)]
    assert [row["local_rank"] for row in document["by_local_rank"]] == list(range(8))
    assert document["look_at_first"][0]["rank"] == 300
    assert {one["rank"] for one in document["outliers"]} == {300}


def test_a_trace_of_chosen_ranks_reads_no_records_of_others(tmp_path: Path) -> None:
    run = LargeJob(40, 5, steps=10).write(tmp_path / "run")
    whole = read_profiled_run(run)
    assert trace_profiled_run(whole, tmp_path / "from-all.json", ranks=[7, 33]) is None
    for rank in set(range(40)) - {0, 7, 33}:
        with (run.hvprof / f"rank-{rank:05d}.hvp").open("r+b") as stream:
            stream.truncate(RECORDS_START)
    assert write_trace(run, tmp_path / "chosen.json", "7,33") is None
    assert (tmp_path / "chosen.json").read_bytes() == (tmp_path / "from-all.json").read_bytes()
    chosen = read_profiled_run(run, ranks=[7, 33]).recording
    assert (chosen.ranks, chosen.recorded) == ([0, 7, 33], list(range(40)))


def test_the_trace_of_chosen_ranks(hvscale: Run, tmp_path: Path) -> None:
    LargeJob(40, 5, steps=10).write(tmp_path / "run")
    done = hvscale("report", "run", "--trace", "trace.json", "--ranks", "0,7,32-34")
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    messages = [event for event in events if event["ph"] == "X" and event["cat"] == "data"]
    assert {event["pid"] for event in messages} == {0, 7, 32, 33, 34}
    assert len(messages) == 5 * 10 * len(SIZES)
    assert hvscale("trace", "run", "--chakra", "job", "--ranks", "3,39").returncode == 0
    assert sorted(path.name for path in tmp_path.glob("job.*")) == ["job.3.et", "job.39.et"]
    assert hvscale("trace", "run", "--chakra", "all").returncode == 0
    for rank in (3, 39):
        assert (tmp_path / f"job.{rank}.et").read_bytes() == (tmp_path / f"all.{rank}.et").read_bytes()
    for arguments, message in (
        (("report", "run", "--trace", "no.json", "--ranks", "40"), "rank 40 has no profile"),
        (("trace", "run", "--chakra", "no", "--ranks", "1-"), "not a rank or a range of ranks"),
        (("report", "run", "--ranks", "1"), "give --trace FILE too"),
    ):
        done = hvscale(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("no*"))
