"""The rows, table and requests of `compare-placements`."""

import math
from pathlib import Path
from typing import Any

import pytest

from hvscale.core.errors import RequestError
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.profiling.compare import Comparison, ComparisonRow
from hvscale.studies.comparison.placements import (
    PlacementComparison,
    overhead_sentence,
    placement_study,
)
from hvscale.studies.comparison.study import RepeatedRun
from hvscale.studies.comparison.summary import summary_table

STUDENT_T_2_DEGREES = 4.302652729911275  # the 95 % confidence interval


def launch(**options: Any) -> LaunchOptions:
    return LaunchOptions.of(**{"np": 2, **options})


def document(by: str, host: list[float | None], other: list[float | None]) -> PlacementComparison:
    """A document whose runs have these throughputs or seconds; None for a failed run."""
    made = PlacementComparison(
        folder="compared",
        command=["true"],
        np=2,
        launch=dict.fromkeys(("host", "docker:node"), launch()),
        metric=None,
        repeats=len(host),
        measured_by="throughput" if by == "throughput" else "seconds",
    )
    for name, values in (("host", host), ("docker:node", other)):
        for repeat, value in enumerate(values, 1):
            figures = {} if value is None else {"seconds": 1.0, by: value}
            made.runs.append(RepeatedRun.model_validate({"name": name, "repeat": repeat, "folder": "run", **figures}))
    # It ran, but does not count.
    failed = {"seconds": 9.0, "throughput": 9.0, "problem": "the clocks differ"}
    made.runs.append(RepeatedRun.model_validate({"name": "host", "repeat": 1 + len(host), "folder": "run", **failed}))
    made.tabulate()
    return made


def test_overhead_is_computed_within_rounds() -> None:
    host, other = [2.0, 4.0, 3.0], [3.0, 5.0, 4.5]
    base, row = document("seconds", [*host], [*other]).rows
    logs = [math.log(after / before) for before, after in zip(host, other, strict=True)]
    mean = sum(logs) / 3
    half_width = STUDENT_T_2_DEGREES * math.sqrt(sum((one - mean) ** 2 for one in logs) / 2 / 3)
    assert row.overhead_percent == pytest.approx(100 * (math.exp(mean) - 1))
    assert row.overhead_percent_low == pytest.approx(100 * (math.exp(mean - half_width) - 1))
    assert row.overhead_percent_high == pytest.approx(100 * (math.exp(mean + half_width) - 1))
    assert row.verdict == "slower"
    assert (base.overhead_percent, base.verdict, base.throughput) == (None, None, None)
    assert base.seconds == pytest.approx(24 ** (1 / 3))


@pytest.mark.parametrize(
    ("by", "host", "other", "overhead", "verdict"),
    [
        # Half the throughput takes twice the time.
        ("throughput", [10, 12, 14], [5, 6, 7], 100, "slower"),
        ("throughput", [10, 12, 14], [12.5, 15, 17.5], -20, "faster"),
        ("seconds", [1, 2, 4], [2, 2, 2], 0, "no difference"),
        ("seconds", [2], [3], 50, "unknown"),
        # Only rounds in which both runs finished count.
        ("seconds", [1, None, 1], [3, 100, None], 200, "unknown"),
    ],
)
def test_the_interval_decides_the_verdict(
    by: str, host: list[float | None], other: list[float | None], overhead: float, verdict: str
) -> None:
    _, row = document(by, host, other).rows
    assert row.overhead_percent == pytest.approx(overhead, abs=1e-9)
    assert row.verdict == verdict


def test_a_failed_baseline_leaves_the_other_rows() -> None:
    made = document("throughput", [None], [5])
    (row,) = made.rows
    assert (row.placement, row.throughput, row.overhead_percent, row.verdict) == ("docker:node", 5, None, None)
    assert summary_table(made).table().row_count == 1


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["host"], {}, "host: name two placements or more, each once, of docker:node"),
        (["host", "ssh", "host"], {}, "host,ssh,host: name two"),
        (["host", ""], {}, "host,: name two"),
        (["host", "podman"], {}, "podman: unknown placement. Known: docker:node"),
        (["host", "netns"], {"network": "overlay"}, "--network does not apply to --placement host, only to docker:"),
        (["host", "docker:rank"], {"ranks_per_container": 2}, "--ranks-per-container does not apply to"),
        (["host", "docker:node"], {}, "the Docker daemon does not answer|docker: not found"),
        (["host", "ssh"], {}, "--placement ssh needs hosts"),
    ],
)
def test_an_invalid_request_is_rejected_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: list[str], options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(RequestError, match=message):
        placement_study(names, ["true"], repeats=1, metric=None, bins="study", options=launch(**options))
    assert not list(tmp_path.iterdir())


def test_an_option_is_passed_only_to_placements_that_support_it() -> None:
    study = placement_study(
        ["host", "ssh"], ["true"], repeats=1, metric=None, bins="study", options=launch(hosts="a:1,b:1")
    )
    assert study.document.launch["host"].placement == PlacementOptions(placement="host")
    assert study.document.launch["ssh"].placement == PlacementOptions(placement="ssh", hosts="a:1,b:1")
    (warning,) = study.document.warnings
    assert warning.startswith("--hosts does not apply to host, only to ssh")


def test_the_sentence_names_the_messages_that_changed_most() -> None:
    def row(operation: str, before: float, after: float) -> ComparisonRow:
        return ComparisonRow(
            operation=operation,
            bytes_min=131073,
            bytes_max=16777216,
            calls_before=8,
            calls_after=8,
            seconds_before=before,
            seconds_after=after,
            gain_percent=-1,
            gain_percent_low=-2,
            gain_percent_high=-1,
            verdict="more" if after > before else "less",
        )

    made = Comparison(
        run_before="compared/host-repeat-1",
        run_after="compared/docker-node-repeat-1",
        np=2,
        per="step",
        steps_before=4,
        steps_after=4,
        rows=[row("broadcast", 4.0, 3.5), row("allreduce", 1.0, 2.0)],
        total=row("total", 5.0, 5.5),
        step=None,
        warnings=[],
    )
    assert overhead_sentence(made) == (
        "docker-node-repeat-1: communication takes 250 ms more per rank and step; "
        "the largest increase is in allreduce of 128 KiB-16 MiB: 500 ms"
    )
    made.total = row("total", 5.5, 5.0)
    assert "250 ms less per rank and step; the largest decrease is in broadcast" in overhead_sentence(made)
