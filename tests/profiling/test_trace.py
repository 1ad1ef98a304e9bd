"""The Chrome trace, by its structure."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from hvscale.core.errors import RequestError
from hvscale.studies.run_report.trace import trace_profiled_run
from tests.profiling.test_compare import NP, STEP_SECONDS, STEPS, recorded


def trace(path: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The document, and its events by phase."""
    document = json.loads(path.read_text())
    events = defaultdict(list)
    for event in document["traceEvents"]:
        events[event["ph"]].append(event)
    return document, events


def test_every_message_stands_on_its_rank_and_thread(tmp_path: Path) -> None:
    run = recorded()
    assert trace_profiled_run(run, tmp_path / "trace.json") is None
    document, events = trace(tmp_path / "trace.json")
    assert document["otherData"]["command"] == ["program"]
    names = {event["pid"]: event["args"]["name"] for event in events["M"] if event["name"] == "process_name"}
    assert names == {0: "rank 0 (here)", 1: "rank 1 (here)"}
    messages = [event for event in events["X"] if event["cat"] != "step"]
    assert len(messages) == len(run.recording.events)
    assert {(event["pid"], event["tid"]) for event in messages} == {(0, 100), (1, 101)}
    assert {(event["cat"], event["args"]["bytes"]) for event in messages} == {("agreement", 4), ("data", 4 << 20)}
    starts = [event["ts"] for event in messages]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert sum(event["dur"] for event in messages) == pytest.approx(run.recording.events.duration_ns.sum() / 1000)
    steps = [event for event in events["X"] if event["cat"] == "step"]
    assert [event["name"] for event in steps] == [f"step {number}" for number in range(1, STEPS + 1)]
    assert steps[0]["dur"] == pytest.approx(STEP_SECONDS * 1e6, rel=1e-3)


def test_the_last_messages_are_kept_and_that_is_said(tmp_path: Path) -> None:
    run = recorded()
    said = trace_profiled_run(run, tmp_path / "trace.json", last=4 * NP)
    assert said is not None
    assert "the last 8 messages" in said
    _, events = trace(tmp_path / "trace.json")
    assert len([event for event in events["X"] if event["cat"] != "step"]) == 4 * NP
    assert events["X"][0]["name"] == f"step {STEPS}"


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot write"):
        trace_profiled_run(recorded(), tmp_path / "nowhere" / "trace.json")
