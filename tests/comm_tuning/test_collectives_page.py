"""Terminal tables, CSV and the page of a study of collectives."""

import csv
import json
import re
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hvscale.comm_tuning.collectives.decide.cost_model import wire_seconds
from hvscale.comm_tuning.collectives.decide.measurements import (
    LIBRARY,
    LIBRARY_AUTO,
    AlgorithmChoice,
    CollectiveCase,
    Measurements,
    Point,
)
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument
from hvscale.comm_tuning.collectives.report import tables
from hvscale.comm_tuning.collectives.report.figures import axis_range, case_figures, cases, gain_ticks
from hvscale.comm_tuning.collectives.report.page import page
from hvscale.report.csv_file import write_csv
from tests.comm_tuning.collective_studies import (
    DOUBLING,
    FLAT,
    KIB,
    LARGE,
    LINK,
    MIB,
    RING,
    SIZES,
    SMALL,
    TREE,
    broadcast_library,
    point,
    study,
)

BROADCAST = CollectiveCase("broadcast", 4, 1)


@pytest.fixture(scope="module")
def document() -> TuneCollectivesDocument:
    return study()


def with_points(document: TuneCollectivesDocument, points: list[Point]) -> TuneCollectivesDocument:
    found = document.model_copy(update={"measurements": Measurements(mpi="openmpi", points=points)})
    found.tabulate()
    return found


def printed(document: TuneCollectivesDocument) -> str:
    console = Console(width=80)
    with console.capture() as caught:
        for table in tables.terminal_tables(document):
            console.print(table)
    return caught.get()


def words(text: str) -> list[list[str]]:
    """The cells of each line."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def test_choice_descriptions() -> None:
    for choice, description in (
        (LIBRARY, "library's own"),
        (LIBRARY_AUTO, "library's auto"),
        (LARGE, "chain 32 KiB, depth 16"),
        (TREE, "k-nomial 64 KiB, depth 8, radix 4"),
        (RING, "library's segmented_ring 64 KiB"),
        (DOUBLING, "library's recursive_doubling"),
        (AlgorithmChoice(library_algorithm="ring", protocol="ll128", channels=4), "library's ring, ll128, channels 4"),
    ):
        assert tables.describe_choice(choice) == description
    assert str(RING) == f"library's segmented_ring segment_bytes={64 * KIB}"


def test_terminal_tables_show_rules_and_sizes(document: TuneCollectivesDocument) -> None:
    text = printed(document)
    assert all(len(line) <= 80 for line in text.splitlines())
    lines = words(text)
    assert ["broadcast, np 4, 1 rank per node"] in lines
    assert ["from 181 KiB", "chain 32 KiB, depth 16"] in lines
    assert ["up to 22.6 KiB", "library's own"] in lines
    assert document.decision is not None
    [row] = [row for row in document.decision.rows if (row.operation, row.np, row.bytes) == ("broadcast", 4, MIB)]
    times = row.table_seconds / wire_seconds("broadcast", 4, MIB, LINK / 8)
    assert times > 1
    assert f"{row.gain:#.3g} {times:#.3g}" in " ".join(text.split())
    at_4_kib = [line for line in text.splitlines() if line.startswith("4 KiB") and "library's own" in line]
    assert len(at_4_kib) == 1
    assert "no difference" in at_4_kib[0]
    assert "chosen" in text
    assert "between nodes" in text
    assert "wrong" not in text


def test_the_mean_of_a_case_is_geometric(document: TuneCollectivesDocument) -> None:
    rows = tables.by_case(document)[BROADCAST]
    mean = exp(sum(log(row.gain) for row in rows) / len(rows))
    last = tables.sizes_table(document).groups[tables.describe_case(BROADCAST)][-1]
    assert last[:2] == ["all", "geometric mean"]
    assert float(last[4]) == pytest.approx(mean, rel=0.01)
    assert f"{mean:#.3g} times as fast" in page(document)


def test_without_a_known_link_the_wire_is_not_shown() -> None:
    unknown = study(link=None)
    assert "wire" not in printed(unknown)
    assert all(row.wire_seconds is None for row in tables.rows(unknown))
    assert "wire (" not in names(unknown, BROADCAST, "latency")
    within = tables.wire_bound(study(nps=[4]), CollectiveCase("broadcast", 4, 4), MIB)
    assert within is None
    assert tables.wire_bound(study(nps=[4]), CollectiveCase("broadcast", 4, 2), MIB) == pytest.approx(8 * MIB / LINK)


def test_wrong_results_and_undecided_sizes_are_reported(document: TuneCollectivesDocument) -> None:
    wrong = point("broadcast", 4, MIB, FLAT, 1e-9).model_copy(update={"wrong": 2})
    quick = AlgorithmChoice(algorithm="flat", chunk_bytes=KIB, depth=4)
    noisy = point("broadcast", 4, MIB, quick, broadcast_library(4, MIB) / 5, spread=0.99)
    found = with_points(document, [*document.measurements.points, wrong, noisy])
    text = printed(found)
    assert "1 choices with wrong results are left out" in " ".join(text.split())
    assert "?: the best choice is more than 3 % faster" in " ".join(text.split())
    assert len(re.findall(r"\d \?", text)) == 1
    assert "undecided" in names(found, BROADCAST, "gain")
    assert all(second > 1e-8 for trace in traces(found, BROADCAST, "latency") for second in trace.y)


def test_sizes_as_csv(document: TuneCollectivesDocument, tmp_path: Path) -> None:
    write_csv(tmp_path / "table.csv", tables.rows(document))
    with (tmp_path / "table.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == 4 * len(SIZES)
    [line] = [it for it in lines if (it["operation"], it["np"], it["bytes"]) == ("broadcast", "4", str(MIB))]
    assert line["choice"] == "chain chunk_bytes=32768 depth=16"
    assert float(line["wire_seconds"]) == pytest.approx(8 * MIB / LINK)
    assert (line["significant"], line["undecided"]) == ("True", "False")


def test_verdict(document: TuneCollectivesDocument) -> None:
    assert document.decision is not None
    assert f"{document.decision.gain:#.3g} times as fast" in tables.verdict(document)
    library = [it for it in document.measurements.points if it.choice in (LIBRARY, LIBRARY_AUTO)]
    assert tables.verdict(with_points(document, library)).startswith("keep the library's own choices")


def test_a_study_without_a_baseline_shows_no_decision(document: TuneCollectivesDocument) -> None:
    found = with_points(
        document, [it for it in document.measurements.points if it.choice not in (LIBRARY, LIBRARY_AUTO)]
    )
    assert found.decision is None
    assert "no decision yet" in tables.verdict(found)
    assert tables.rows(found) == []
    assert list(case_figures(found, BROADCAST)) == ["latency"]
    assert "No decision for this case" in page(found)
    assert words(printed(found))[0] == ["Cost model"]


def test_an_eager_limit_is_shown_with_its_choices_and_its_model(document: TuneCollectivesDocument) -> None:
    """All times are halved under the eager limit."""
    points = document.measurements.points
    under = [
        it.model_copy(update={"eager_limit_bytes": MIB, "seconds": [second / 2 for second in it.seconds]})
        for it in points
    ]
    found = with_points(document, [*points, *under])
    assert found.decision is not None
    assert found.decision.table.eager_limit_bytes == MIB
    assert "with an eager limit of 1 MiB" in printed(found)
    hidden = [it for it in traces(found, BROADCAST, "latency") if it.visible == "legendonly"]
    assert {it.legendgroup for it in hidden} == {"under another eager limit"}
    assert sum(it.showlegend is not False for it in hidden) == 1
    [curve] = [it for it in traces(found, BROADCAST, "latency") if it.name == "model: chain 32 KiB, depth 16"]
    [fit] = [it for it in found.fits if it.eager_limit_bytes == MIB]
    assert curve.y[-1] == pytest.approx(fit.seconds("broadcast", 4, SIZES[-1], LARGE))


def traces(document: TuneCollectivesDocument, place: CollectiveCase, name: str) -> Any:
    return case_figures(document, place)[name].data


def names(document: TuneCollectivesDocument, place: CollectiveCase, name: str) -> str:
    return "\n".join(str(it.name) for it in traces(document, place, name))


def test_latency_shows_every_choice_the_model_and_the_wire(document: TuneCollectivesDocument) -> None:
    figure = case_figures(document, BROADCAST)["latency"]
    by_name = {it.name: it for it in figure.data}
    assert by_name["library, nothing set"].y[0] == pytest.approx(broadcast_library(4, SIZES[0]))
    hovered = {it.hovertemplate.partition("<br>")[0] for it in figure.data}
    assert {tables.describe_choice(it) for it in (SMALL, LARGE, TREE, FLAT, LIBRARY_AUTO)} <= hovered
    wire = by_name["wire (lower bound)"]
    table = by_name["the table"]
    assert list(table.x) == list(wire.x) == SIZES
    assert all(bound < taken for bound, taken in zip(wire.y, table.y, strict=True))
    best, fixed = by_name["model: chain with its best chunk"], by_name["model: chain 32 KiB, depth 16"]
    assert len(best.x) > len(SIZES)
    assert all(one <= other * 1.0001 for one, other in zip(best.y, fixed.y, strict=True))


def test_adjacent_bands_show_the_rules(document: TuneCollectivesDocument) -> None:
    assert document.decision is not None
    rules = [it for it in document.decision.table.rule if tables.case_of(it) == BROADCAST]
    for figure in case_figures(document, BROADCAST).values():
        shapes = [it for it in figure.layout.shapes if it.type == "rect"]
        assert len(shapes) == len(rules) > 1
        left, right = axis_range(SIZES)
        assert (shapes[0].x0, shapes[-1].x1) == (pytest.approx(10**left), pytest.approx(10**right))
        for shape, rule, after in zip(shapes, rules, shapes[1:], strict=False):
            assert shape.x1 == pytest.approx(after.x0) == pytest.approx(rule.last + 1)
    named = case_figures(document, BROADCAST)["latency"].layout.annotations
    assert [it.text.replace("<br>", " ") for it in named] == [
        tables.describe_choice(tables.choice_of_rule(it)) for it in rules
    ]


def test_the_name_of_a_narrow_band_is_rotated() -> None:
    """The best choice alternates from size to size."""
    points = [
        point("broadcast", 4, size, choice, 2.0 if choice == LIBRARY else 1.0 + (number % 2 == turn))
        for number, size in enumerate(SIZES)
        for turn, choice in enumerate((SMALL, TREE, LIBRARY))
    ]
    found = with_points(study(nps=[4]), points)
    named = case_figures(found, BROADCAST)["latency"].layout.annotations
    assert len(named) == len(SIZES)
    assert {it.textangle for it in named} == {-90}


def test_gain_ticks_do_not_overlap() -> None:
    assert gain_ticks(0.8, 2.5) == [0.8, 1, 1.25, 1.5, 2]
    assert gain_ticks(0.8, 115) == [1, 2, 4, 10, 20, 50, 100]
    assert gain_ticks(0.99, 1.01) == [1]


def test_a_study_of_one_size_and_one_sample_has_a_page() -> None:
    once = Point(operation="gather", np=2, ranks_per_node=2, bytes=KIB, seconds=[1e-3])
    found = with_points(study(nps=[2], link=None), [once])
    assert cases(found) == [once.case]
    assert "No significant difference from the library at any of 1 sizes" in page(found)


def test_the_page_needs_no_network_and_escapes_text(document: TuneCollectivesDocument) -> None:
    hostile = "</script><script>alert(1)</script>"
    text = page(document.model_copy(update={"library": hostile, "warnings": [hostile]}))
    assert hostile not in text
    assert '<link rel="icon" href="data:,">' in text
    [figures] = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert sorted(json.loads(figures)) == sorted(
        f"{name}-{number}" for name in ("latency", "bandwidth", "gain") for number in range(4)
    )
