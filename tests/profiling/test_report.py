"""The content of a report, without a browser, and the Chrome trace."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling import tabulate
from hvscale.profiling.analyze.explanation import ExplainedBreakdown, explain_recording, join
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.analyze.rank_comparison import compare_ranks
from hvscale.profiling.compare import ProfiledRun
from hvscale.profiling.read.events import HorovodMessages
from hvscale.studies.run_report.autotune import autotune_view
from hvscale.studies.run_report.page import View, _sentence, _settings_of, render, report_path, write_report
from hvscale.studies.run_report.predictions import PredictionLink
from hvscale.studies.run_report.trace import trace_profiled_run
from tests.profiling.test_compare import NP, STEP_SECONDS, STEPS, compared, recorded

HOSTILE = "</script><script>alert('1')</script>&amp;"


def view(result: dict[str, Any] | None = None, **options: Any) -> View:
    run = recorded(**options)
    return View("job", run, explained(run), result or {}, None)


def explained(run: ProfiledRun, messages: HorovodMessages | None = None) -> ExplainedBreakdown:
    found = explain_recording(run.record, run.recording, run.log, None if messages is None else [messages])
    table = tabulate(run.recording, parse_bins("study"), run.path)
    nodes = dict.fromkeys(run.recording.ranks, "here")
    return join(table, found, compare_ranks(table.rank_rows, run.recording.ranks, nodes, None, run.recording.steps, {}))


def figures(page: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    document: dict[str, Any] = json.loads(found)
    return document


def texts(page: str) -> str:
    """The page without Plotly's script."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_a_job_that_was_tuned_while_it_trained(tmp_path: Path) -> None:
    tried = [{"settings": {"cycle_time": "5"}, "steps": 7, "ratio": 0.8, "kept": True}]
    result = {
        "schema": "hvscale/autotune/1",
        "state": "tuned",
        "settings": {"cycle_time": "5"},
        "pairs": [[1.25, 1.0], [1.3, 1.0]],
        "steps": 60,
        "switches": 7,
        "lost_seconds": -3.5,
        "trials": tried,
    }
    run = RunFolder(tmp_path)
    assert autotune_view(run) is None
    (tmp_path / "autotune").mkdir()
    (tmp_path / "autotune/result.json").write_text(json.dumps(result))
    shown = view()
    shown.autotune = autotune_view(run)
    page = texts(render([shown], parse_bins("study")))
    assert "Tuned while it trained" in page
    assert "New settings: cycle_time=5. Throughput is 1.27 times that of the defaults (95 % interval" in page
    assert "60 steps and 7 changes of settings, which gained 3.5 s" in page
    assert "<td>cycle_time=5</td><td>7</td><td>0.80</td><td>yes</td>" in page
    (tmp_path / "autotune/result.json").write_text("{")
    with pytest.raises(ValueError, match="is not a result of --autotune"):
        autotune_view(run)


def test_one_run() -> None:
    result = {"images_per_second": 123.4, "psnr_db": 30.5, "bicubic_psnr_db": 30.0, "holdout": "flower"}
    page = render([view(result)], parse_bins("study"))
    shown = texts(page)
    for expected in (
        "100 ms",
        "123.4",
        "30.50 dB",
        "+0.50 dB over bicubic",
        f"mean of {STEPS} steps",
        "exposed communication",
    ):
        assert expected in shown
    assert "Late ranks" not in shown
    drawn = figures(page)
    assert set(drawn) == {"seconds", "calls", "timeline-0", "exposed-0"}
    assert [trace["name"] for trace in drawn["exposed-0"]["data"]] == ["step", "exposed"]
    assert "10 % of a step" in shown
    assert {trace["name"] for trace in drawn["calls"]["data"]} == {"data", "coordination"}
    (messages,) = [trace for trace in drawn["timeline-0"]["data"] if trace["name"] == "allreduce"]
    assert len(messages["y"]) == 2 * NP


def test_horovods_phases_are_shown_for_the_run_that_has_them() -> None:
    messages = HorovodMessages(
        operations=("allreduce", HOSTILE),
        operation=np.array([0, 0, 1], np.uint8),
        bytes=np.full(3, 64 << 20, np.int64),
        sized=np.ones(3, np.bool_),
        tensors=np.array([12, 3, 1], np.int64),
        phases_ns=np.tile(np.array([7_000_000, 0, 2_000_000, 30_000_000, 1_000_000, 0], np.int64), (3, 1)),
    )
    without, with_phases = view(), view()
    with_phases.breakdown = explained(with_phases.recorded, messages)
    page = render([without, with_phases], parse_bins("study"))
    shown = texts(page)
    assert "Horovod's activity, after" in shown
    assert "Horovod's activity, before" not in shown
    for expected in ("60 ms", "Fusion buffer of 128 MiB: filled to 50 % (mean)", "mean 5.33, maximum 12"):
        assert expected in shown
    drawn = figures(page)
    assert "phases-0" not in drawn
    assert [trace["name"] for trace in drawn["phases-1"]["data"]] == [
        *("negotiation", "copy in", "communication", "copy out")
    ]
    assert "alert('1')" not in page


def test_two_runs() -> None:
    page = render([view(milliseconds=10), view(milliseconds=5)], parse_bins("study"))
    assert "50 % less" in texts(page)
    drawn = figures(page)
    assert set(drawn) == {"seconds", "calls", "timeline-0", "timeline-1", "exposed-0", "exposed-1"}
    assert [trace["name"] for trace in drawn["seconds"]["data"]] == ["before", "after"]
    with pytest.raises(RequestError, match="did different work"):
        render([view(), view(ranks=4)], parse_bins("study"))


def test_predictions_of_a_run_are_linked() -> None:
    linked = view()
    linked.predictions = [PredictionLink("../a%20b/prediction.html", HOSTILE, "np 8 to 512")]
    shown = texts(render([linked], parse_bins("study")))
    assert '<a href="../a%20b/prediction.html">' in shown
    assert "</a>: np 8 to 512" in shown
    assert HOSTILE not in shown
    assert "Predicted scaling" not in texts(render([view()], parse_bins("study")))


def test_text_from_a_run_stays_text() -> None:
    shown = view({"holdout": HOSTILE, "model": HOSTILE, "psnr_db": 1, "bicubic_psnr_db": 1}, command=HOSTILE)
    shown.title = HOSTILE
    shown.recorded.record.host.cpu = HOSTILE
    shown.recorded.record.launch = {"env": [f"{HOSTILE}={HOSTILE}"]}
    shown.breakdown.warnings.append(HOSTILE)
    events = shown.recorded.recording.load()
    object.__setattr__(events, "operations", (HOSTILE,))
    shown.breakdown = explained(shown.recorded)
    shown.breakdown.warnings.append(HOSTILE)
    page = render([shown], parse_bins("study"))
    assert "alert('1')" not in page
    assert page.count("alert(&#39;1&#39;)") > 6
    assert page.count("<script") == render([view()], parse_bins("study")).count("<script")


def test_a_page_shows_some_of_many_warnings() -> None:
    shown = view()
    shown.breakdown.warnings += [f"warning {number}" for number in range(30)]
    page = texts(render([shown], parse_bins("study")))
    assert "<p>warning 11</p>" in page
    assert "warning 12" not in page
    assert "18 more: hvscale breakdown prints all warnings" in page


def test_a_line_over_many_steps_has_few_points() -> None:
    drawn = figures(render([view(steps=3000, sizes=(4096,))], parse_bins("study")))["exposed-0"]
    assert len(drawn["data"][0]["x"]) == 1000
    assert drawn["layout"]["xaxis"]["title"]["text"] == "step, means of 3"


def test_a_run_without_steps_shows_its_middle_part() -> None:
    page = render([view(log=False)], parse_bins("study"))
    assert "steps are unknown" in texts(page)
    assert "in collectives, per rank" in texts(page)


@pytest.mark.parametrize("result", [{"psnr_db": "x", "bicubic_psnr_db": None}, {"images_per_second": [1]}])
def test_an_invalid_result_is_skipped(result: dict[str, Any]) -> None:
    assert "PSNR" not in texts(render([view(result)], parse_bins("study")))


def test_a_report_needs_one_or_two_runs(tmp_path: Path) -> None:
    runs = [RunFolder(tmp_path / name) for name in "abc"]
    for wrong in ([], runs):
        with pytest.raises(RequestError, match="one run, or two"):
            write_report(wrong, tmp_path / "report.html")
    assert report_path(runs[:1]) == tmp_path / "a" / "report.html"
    assert report_path(runs[:2]) == tmp_path / "b" / "comparison.html"


def test_a_long_step_shows_its_longest_calls() -> None:
    shown = view(steps=1, sizes=tuple([4096] * 3000))
    drawn = figures(render([shown], parse_bins("study")))
    bars = sum(len(trace["y"]) for trace in drawn["timeline-0"]["data"])
    assert bars <= 4000
    assert np.isfinite(drawn["timeline-0"]["layout"]["xaxis"]["range"]).all()


def trace(path: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The document, and its events by phase."""
    document = json.loads(path.read_text())
    events = defaultdict(list)
    for event in document["traceEvents"]:
        events[event["ph"]].append(event)
    return document, events


def test_the_first_sentence_names_a_change_that_the_table_shows() -> None:
    shown = explained(recorded(5))
    same = compared(recorded(5), recorded(5))
    assert _sentence(shown, same) == "No message size shows a difference."
    less = compared(recorded(5, noise=0), recorded(4.99, noise=0))
    # The other row changed more, but its interval includes 0.
    less.rows[0].seconds_after *= 1000
    assert _sentence(shown, less).startswith("The largest change is in allreduce of 128 KiB-16 MiB: ")
    unknown = same.model_copy(update={"rows": [row.model_copy(update={"verdict": "unknown"}) for row in same.rows]})
    assert _sentence(shown, unknown).startswith("The largest change is in ")


def test_the_settings_are_those_that_the_user_chose() -> None:
    shown = view()
    own = {"HVPROF_MIB": "64", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "log", "OMPI_MCA_mpi_show_mca_params": "file"}
    shown.recorded.record.rank_environment = {**own, "UCX_TLS": "tcp"}
    assert _settings_of(shown)["Settings"] == {"UCX_TLS": "tcp"}
    shown.recorded.record.launch = {"env": ["NCCL_DEBUG=INFO"]}
    assert _settings_of(shown)["Settings"] == {"UCX_TLS": "tcp", "NCCL_DEBUG": "INFO"}


def test_each_message_has_its_rank_and_thread(tmp_path: Path) -> None:
    run = recorded()
    assert trace_profiled_run(run, tmp_path / "trace.json") is None
    document, events = trace(tmp_path / "trace.json")
    assert document["otherData"]["command"] == ["program"]
    names = {event["pid"]: event["args"]["name"] for event in events["M"] if event["name"] == "process_name"}
    assert names == {0: "rank 0 (here)", 1: "rank 1 (here)"}
    messages = [event for event in events["X"] if event["cat"] != "step"]
    assert len(messages) == len(run.recording.load())
    assert {(event["pid"], event["tid"]) for event in messages} == {(0, 100), (1, 101)}
    assert {(event["cat"], event["args"]["bytes"]) for event in messages} == {("coordination", 4), ("data", 4 << 20)}
    starts = [event["ts"] for event in messages]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert sum(event["dur"] for event in messages) == pytest.approx(run.recording.load().duration_ns.sum() / 1000)
    steps = [event for event in events["X"] if event["cat"] == "step"]
    assert [event["name"] for event in steps] == [f"step {number}" for number in range(1, STEPS + 1)]
    assert steps[0]["dur"] == pytest.approx(STEP_SECONDS * 1e6, rel=1e-3)


def test_only_the_last_messages_are_kept_with_a_note(tmp_path: Path) -> None:
    run = recorded()
    note = trace_profiled_run(run, tmp_path / "trace.json", last=4 * NP)
    assert note is not None
    assert "the last 8 messages" in note
    _, events = trace(tmp_path / "trace.json")
    assert len([event for event in events["X"] if event["cat"] != "step"]) == 4 * NP
    assert events["X"][0]["name"] == f"step {STEPS}"


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot write"):
        trace_profiled_run(recorded(), tmp_path / "nowhere" / "trace.json")
