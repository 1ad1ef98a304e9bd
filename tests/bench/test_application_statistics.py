"""Box plots against their definition, and overheads against SciPy's bootstrap."""

import json
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

from hvscale.bench.applications.document import ApplicationDocument, ApplicationRun
from hvscale.bench.applications.page import page
from hvscale.core.box_statistics import box, overhead

seconds = st.floats(1e-6, 1e6)


@given(st.lists(seconds, min_size=2, max_size=40))
def test_a_box_is_what_its_definition_says(values: list[float]) -> None:
    found = box(values)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    assert (found.quartile_low, found.median, found.quartile_high) == pytest.approx((low, middle, high), rel=1e-12)
    reach = 1.5 * (found.quartile_high - found.quartile_low)
    beyond = [value for value in values if not found.quartile_low - reach <= value <= found.quartile_high + reach]
    assert found.outliers == sorted(beyond)
    assert found.whisker_low <= found.quartile_low
    assert found.whisker_high >= found.quartile_high
    inside = [value for value in values if value not in found.outliers]
    assert all(found.whisker_low <= value <= found.whisker_high for value in inside)


def test_one_value_is_its_own_box() -> None:
    assert set(box([3.0]).model_dump(exclude={"outliers"}).values()) == {3.0}


def test_an_overhead_and_its_interval_are_those_of_a_paired_bootstrap() -> None:
    generator = np.random.default_rng(1)
    base = generator.normal(10, 0.2, 12)
    mood = generator.normal(0, 0.5, 12)  # of the machine, the same for both in a round
    values = 1.07 * (base + mood) + generator.normal(0, 0.1, 12)
    base += mood
    found = overhead(dict(enumerate(values)), dict(enumerate(base)))
    assert found is not None
    assert found.percent_low is not None
    assert found.percent_high is not None
    assert found.percent == pytest.approx(100 * (np.median(values) / np.median(base) - 1))
    theirs = bootstrap(
        (values, base),
        lambda ours, others, axis: 100 * (np.median(ours, axis=axis) / np.median(others, axis=axis) - 1),
        paired=True,
        method="percentile",
        n_resamples=10_000,
        rng=2,
    ).confidence_interval
    width = theirs.high - theirs.low
    assert found.percent_low == pytest.approx(theirs.low, abs=0.1 * width)
    assert found.percent_high == pytest.approx(theirs.high, abs=0.1 * width)


def test_overheads_are_of_rounds_that_both_have() -> None:
    assert overhead({1: 2.0}, {2: 1.0}) is None
    one = overhead({1: 3.0, 2: 100.0}, {1: 2.0, 3: 1.0})
    assert one is not None
    assert (one.percent, one.percent_low, one.percent_high) == (50, None, None)


TIMES = {
    ("-O2", "host", 1): [8.0, 9.0, 10.0],
    ("-O2", "host", 2): [4.0, 6.0, 5.0],
    ("-O2", "docker:node", 1): [9.9, 9.9, 9.0],
    ("-O2", "docker:node", 2): [6.0, 6.0, 6.0],
    ("-O3", "host", 1): [8.5, 8.5, 8.5],
    ("-O3", "host", 2): [5.4, 5.4, 99.0],
    ("-O3", "docker:node", 1): [1.0, 1.0, 1.0],
}


@pytest.fixture(scope="module")
def document() -> ApplicationDocument:
    document = ApplicationDocument.model_validate(
        {
            "folder": "runs/x",
            "application": "merge_sort",
            "source": "",
            "sizes": {"samples": 10},
            "flags": ["-O2", "-O3"],
            "placements": ["host", "docker:node"],
            "np": [1, 2],
            "repeats": 3,
            "base_np": 1,
            "settings": {},
            "compiler": {"path": "mpicc", "version": "1"},
        }
    )
    document.runs = [
        ApplicationRun(flags=flags, placement=placement, np=np, repeat=repeat, folder="", seconds=value)
        for (flags, placement, np), values in TIMES.items()
        for repeat, value in enumerate(values, 1)
    ]
    wrong = document.runs[0].model_copy(update={"seconds": 0.001, "problem": "a wrong result"})
    document.runs.append(wrong.model_copy(update={"repeat": 4}))
    document.tabulate()
    return document


def test_the_table_follows_the_studys_formulas(document: ApplicationDocument) -> None:
    rows = {(row.flags, row.placement, row.np): row for row in document.rows}
    assert {key: row.median_seconds for key, row in rows.items()} == {
        key: statistics.median(values) for key, values in TIMES.items()
    }
    assert rows["-O2", "host", 2].speed_up == pytest.approx(9 / 5)
    assert rows["-O2", "docker:node", 2].speed_up == pytest.approx(9.9 / 6)
    assert rows["-O2", "docker:node", 1].overhead_percent == pytest.approx(10)
    assert rows["-O2", "docker:node", 2].overhead_percent == pytest.approx(20)
    assert rows["-O2", "host", 2].overhead_percent is None
    # 8.5 + 5.4 is less than 9 + 5; in containers only -O2 was measured on every np.
    assert [(best.placement, best.flags) for best in document.best_flags] == [("host", "-O3"), ("docker:node", "-O2")]
    assert document.best_flags[0].sum_of_median_seconds == pytest.approx(13.9)


def test_the_page_draws_the_tables_boxes(document: ApplicationDocument) -> None:
    text = page(document)
    figures = json.loads(text.partition('<script type="application/json" id="figures">')[2].partition("</script>")[0])
    assert list(figures) == ["np-1", "np-2", "speed-up"]
    for ranks in (1, 2):
        drawn = {
            (flags, trace["name"], ranks): numbers
            for trace in figures[f"np-{ranks}"]["data"]
            for flags, *numbers in zip(trace["x"], *map(trace.get, ("q1", "median", "q3", "y")), strict=True)
        }
        shown = [row for row in document.rows if row.np == ranks]
        assert drawn == {
            (row.flags, row.placement, ranks): [
                *(row.quartile_low_seconds, row.median_seconds, row.quartile_high_seconds),
                TIMES[row.flags, row.placement, ranks],
            ]
            for row in shown
        }
    names = [trace["name"] for trace in figures["speed-up"]["data"]]
    assert names == ["linear", "host, -O2", "host, -O3", "docker:node, -O2", "docker:node, -O3"]
