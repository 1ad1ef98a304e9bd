"""Tables and figures of the applications, compared with their formulas."""

import json
import statistics

import pytest

from hvscale.bench.applications.document import ApplicationDocument, ApplicationRun
from hvscale.bench.applications.page import page

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
            "launch": {},
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


def test_the_table_follows_the_formulas_of_the_study(document: ApplicationDocument) -> None:
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


def test_the_page_draws_the_quartiles_of_the_table(document: ApplicationDocument) -> None:
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
