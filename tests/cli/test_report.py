"""`hvscale report`: what it says about the files that it wrote."""

from pathlib import Path

import pytest

from hvscale.cli.commands.report import report
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder


def test_the_trace_of_two_runs_is_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traced = []
    monkeypatch.setattr(RunFolder, "open", RunFolder)
    monkeypatch.setattr("hvscale.studies.run_report.page.write_report", lambda *_: [])
    monkeypatch.setattr("hvscale.studies.run_report.trace.write_trace", lambda run, *_: traced.append(run.path))
    report([Path("before"), Path("after")], output=Path("page.html"), trace=Path("trace.json"))
    assert traced == [Path("after")]
    assert capsys.readouterr().err == "report: page.html\ntrace of after: trace.json\n"


def test_page_and_trace_need_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "open", RunFolder)
    with pytest.raises(RequestError, match=r"--trace page\.html: the page is written to this file"):
        report([Path("run")], output=Path("page.html").absolute(), trace=Path("page.html"))
