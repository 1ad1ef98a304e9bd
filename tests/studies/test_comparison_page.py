"""The page of a comparison: single starts, failures, hostile names."""

import json
import re
from typing import Any

import pytest

from hvscale.launch.options import LaunchOptions
from hvscale.studies.comparison.page import page
from hvscale.studies.comparison.settings import SettingsComparison
from hvscale.studies.comparison.study import RepeatedRun

HOSTILE = "<b>fast</b>.toml"


def document(throughputs: dict[str, list[float]]) -> SettingsComparison:
    made = SettingsComparison(
        folder="compared",
        command=["python", "</script><script>alert(1)</script>"],
        np=2,
        launch=dict.fromkeys(throughputs, LaunchOptions.of(np=2)),
        metric=None,
        repeats=3,
        unit="images/s",
    )
    made.runs = [
        RepeatedRun(name=name, repeat=repeat, folder="run", throughput=value)
        for name, values in throughputs.items()
        for repeat, value in enumerate(values, 1)
    ]
    made.tabulate()
    return made


def traces(html: str, figure: str) -> list[dict[str, Any]]:
    """The traces of a figure on the page."""
    start = html.index(f'"{figure}":') + len(figure) + 3
    found, _ = json.JSONDecoder().raw_decode(html, start)
    data: list[dict[str, Any]] = found["data"]
    return data


def test_every_start_the_means_and_the_gain_are_shown() -> None:
    html = page(document({"mpi": [10.0, 12.0, 11.0], HOSTILE: [20.0, 24.0, 22.0]}))
    starts, means = traces(html, "results")
    assert starts["x"] == [10.0, 12.0, 11.0, 20.0, 24.0, 22.0]
    assert starts["y"] == ["mpi"] * 3 + ["&lt;b&gt;fast&lt;/b&gt;.toml"] * 3
    assert means["x"] == pytest.approx([1320 ** (1 / 3), 2 * 1320 ** (1 / 3)])
    assert all(length > 0 for length in (*means["error_x"]["array"], *means["error_x"]["arrayminus"]))
    (gain,) = traces(html, "change")
    assert gain["x"] == pytest.approx([100])
    assert gain["error_x"]["array"] == pytest.approx([0], abs=1e-9)
    assert HOSTILE not in html
    assert "<script>alert" not in html


def test_intervals_that_are_unknown_or_useless_are_left_out() -> None:
    html = page(document({"mpi": [10.0], HOSTILE: [1.0, 9000.0]}))
    _, means = traces(html, "results")
    assert means["error_x"]["array"] == means["error_x"]["arrayminus"] == [0, 0]
    (gain,) = traces(html, "change")
    assert gain["error_x"]["array"] == [0]


def test_settings_alone_have_no_gain() -> None:
    html = page(document({"mpi": [10.0, 11.0], HOSTILE: []}))
    assert not re.search('id="change"', html)
    assert len(traces(html, "results")[1]["x"]) == 1
