"""The tables, figures and page of a prediction."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from hvscale.prediction.document import PredictionDocument
from hvscale.prediction.figures import prediction_figures
from hvscale.prediction.page import answer, page
from hvscale.prediction.tables import checks_table, messages_table, prediction_table, why_table
from tests.prediction.predictions import MEASURED, MIB, TENSORS, prediction, row_at

HOSTILE = "</script><script>alert('1')</script>"
WIDTH = 80  # of a terminal


def traces(document: PredictionDocument, figure: str) -> dict[str, dict[str, Any]]:
    """The traces of a figure by name; of traces with one name, the first."""
    found: dict[str, dict[str, Any]] = {}
    for trace in json.loads(prediction_figures(document)[figure].to_json())["data"]:
        found.setdefault(trace["name"], trace)
    return found


def lines_of(table: Callable[[PredictionDocument], Any], document: PredictionDocument) -> list[str]:
    from rich.console import Console

    console = Console(width=WIDTH)
    with console.capture() as capture:
        console.print(table(document).table())
    return capture.get().splitlines()


@pytest.mark.parametrize("table", [prediction_table, why_table, messages_table, checks_table])
def test_tables_fit_into_a_terminal(table: Callable[[PredictionDocument], Any]) -> None:
    document = prediction()
    document.rows.append(row_at(4096))
    lines = lines_of(table, document)
    assert max(map(len, lines)) <= WIDTH
    assert "…" not in "".join(lines)


def test_the_table_groups_rows_by_source_and_marks_extrapolation() -> None:
    table = prediction_table(prediction())
    nps = {heading: [row[0] for row in rows] for heading, rows in table.groups.items()}
    assert nps["measured"] == ["2", "4"]
    assert nps["replayed"] == ["8", "16", "32"]
    assert nps["predicted"] == ["1", "2", "4"]
    assert nps["extrapolated"][-1] == "512 (x 128)"
    assert "images/s" in table.columns
    (four,) = [row for row in table.groups["measured"] if row[0] == "4"]
    assert four[1:3] == ["95.7 ms", "93.8 to 97.7 ms"]


def test_shares_of_a_step_add_up_to_all_of_it() -> None:
    for row in why_table(prediction()).groups[""]:
        assert sum(map(float, row[2:])) == pytest.approx(100, abs=0.3)


def test_rows_with_the_same_messages_share_a_group() -> None:
    document = prediction()
    document.rows[-1].messages[0].calls = 40
    same, last = messages_table(document).groups.items()
    assert same[0] == "np 1, 2, 4, 8, 16, 32, 64, 128, 256"
    assert (last[0], last[1][0][1]) == ("np 512", "40")
    assert [row[0] for row in same[1]] == ["1 B-128 KiB", "128 KiB-16 MiB", "> 64 MiB"]


def test_curves_are_dashed_beyond_the_measured_np_and_have_a_band() -> None:
    document = prediction()
    for name in ("throughput", "efficiency"):
        found = traces(document, name)
        assert found["predicted"]["x"] == [1, 2, 4]
        assert found["extrapolated"]["x"] == [4, 8, 16, 32, 64, 128, 256, 512]  # joined to the solid line
        assert found["extrapolated"]["line"]["dash"] == "dash"
        assert found["90% interval"]["fill"] == "toself"
        assert found["measured"]["x"] == [2, MEASURED]
        assert found["replayed"]["x"] == [8, 16, 32]
        assert all(length > 0 for length in found["measured"]["error_y"]["array"])
    assert "np 512, extrapolated x 128" in traces(document, "throughput")["extrapolated"]["text"][-1]
    last = document.rows[-1]
    perfect = traces(document, "throughput")["perfect scaling"]
    assert last.images_per_second is not None
    assert perfect["y"][-1] == pytest.approx(last.images_per_second / last.scaling_efficiency)


def test_an_extrapolated_curve_is_joined_to_the_last_measured_point() -> None:
    document = prediction()
    document.rows = [row for row in document.rows if row.source == "measured" or row.extrapolation > 1]
    found = traces(document, "efficiency")
    assert found["extrapolated"]["x"][:2] == [MEASURED, 8]
    assert found["90% interval"]["x"][0] == MEASURED
    assert "predicted" not in found


def test_the_axis_of_throughput_contains_the_intervals() -> None:
    document = prediction()
    first = next(row for row in document.rows if row.np == 1)
    first.images_per_second_low, first.images_per_second_high = 20.0, 1000.0
    axis = json.loads(prediction_figures(document)["throughput"].to_json())["layout"]["yaxis"]
    assert axis["range"][0] < math.log10(20)
    first.images_per_second_low = 1.0  # too wide to be drawn
    axis = json.loads(prediction_figures(document)["throughput"].to_json())["layout"]["yaxis"]
    assert axis["range"][0] > math.log10(20)


def test_checks_show_the_error_at_measured_np() -> None:
    assert checks_table(prediction()).groups[""] == [["2", "90.4 ms", "89.5 ms", "-1.0"]]
    assert 'id="checks"' in page(prediction())
    assert 'id="checks"' not in page(prediction().model_copy(update={"checks": []}))


def test_without_images_the_speed_up_is_shown() -> None:
    document = prediction(images=False)
    assert "speed-up" in prediction_table(document).columns
    found = traces(document, "throughput")
    assert found["perfect scaling"]["y"] == pytest.approx(found["perfect scaling"]["x"])
    assert found["measured"]["y"] == [row.speed_up for row in document.rows[:2]]


def test_the_loss_is_stacked_to_what_efficiency_lacks() -> None:
    document = prediction()
    stacked = traces(document, "loss").values()
    assert {trace["stackgroup"] for trace in stacked} == {"loss"}
    rows = [row for row in document.rows if row.loss is not None]
    for row, *parts in zip(rows, *(trace["y"] for trace in stacked), strict=True):
        assert sum(parts) == pytest.approx(100 * (1 - row.scaling_efficiency))


def test_the_timeline_has_lanes_for_both_steps() -> None:
    document = prediction()
    figure = json.loads(prediction_figures(document)["timeline"].to_json())
    lanes = [lane.replace("<br>", ": ") for lane in figure["layout"]["yaxis"]["categoryarray"]]
    assert lanes == [
        f"recorded, np {MEASURED}: agreement",
        f"recorded, np {MEASURED}: messages",
        f"predicted, np {MEASURED}: gradients",
        f"predicted, np {MEASURED}: agreement",
        f"predicted, np {MEASURED}: messages",
    ]
    found = traces(document, "timeline")
    assert len(found["gradient enqueued"]["x"]) == TENSORS
    assert found["message"]["base"][0] == pytest.approx(31)
    assert found["message"]["customdata"][-1][:2] == ["44 MiB", ""]  # the number of tensors is unknown
    assert [trace["customdata"][-1][1] for trace in figure["data"] if trace["name"] == "message"][1] == ", tensors: 12"
    shown = [trace["name"] for trace in figure["data"] if trace["showlegend"]]
    assert sorted(shown) == ["agreement", "gradient enqueued", "message", "step"]


def test_the_answer_names_the_largest_predicted_np_and_its_loss() -> None:
    text = answer(prediction())
    assert "On 512 ranks a step takes 114 ms (95.7 to 132 ms)" in text
    assert "70.3 % (60.6 to 83.6 %): extrapolated x 128." in text
    assert text.endswith("waiting for the slowest rank: 11.9 % of the step.")
    documented = prediction()
    documented.rows = [row_at(64, "documented")]
    assert "documented, not measured" in answer(documented)


def test_the_page_says_whether_communication_explains_the_measured_curve() -> None:
    document = prediction()
    assert 'id="explained"' not in page(document)
    document.explained = f"communication explains it {HOSTILE}"
    written = page(document)
    assert '<p id="explained">communication explains it' in written
    assert HOSTILE not in written


def documented_only() -> PredictionDocument:
    document = prediction()
    rows = [row_at(np, "documented") for np in (8, 64)]
    for row in rows:
        row.step_seconds_low = row.step_seconds_high = row.scaling_efficiency_low = row.scaling_efficiency_high = None
        row.images_per_second_low = row.images_per_second_high = None
    return document.model_copy(update={"rows": rows, "measured_np": [], "timelines": [], "warnings": []})


def one_np() -> PredictionDocument:
    return prediction().model_copy(update={"rows": [row_at(48)]})


def measured_only() -> PredictionDocument:
    document = prediction()
    return document.model_copy(update={"rows": [row for row in document.rows if row.loss is None], "timelines": []})


def test_pages_leave_out_what_is_unknown() -> None:
    assert "loss" not in prediction_figures(measured_only())
    assert set(prediction_figures(documented_only())) == {"throughput", "efficiency", "loss"}
    assert "90% interval" not in traces(documented_only(), "efficiency")
    found = traces(one_np(), "efficiency")
    assert found["extrapolated"]["error_y"]["array"][0] > 0
    assert traces(one_np(), "loss")["wire"]["type"] == "bar"
    for document in (documented_only(), one_np(), measured_only()):
        assert "<section" in page(document)


def test_text_from_a_document_stays_text() -> None:
    document = prediction().model_copy(
        update={
            "command": ["hvscale", "predict", f"runs/{HOSTILE}", "--link", HOSTILE],
            "runs": [f"runs/{HOSTILE}"],
            "network": HOSTILE,
            "settings": {HOSTILE: HOSTILE},
            "warnings": [HOSTILE],
        }
    )
    written = page(document)
    assert HOSTILE not in written
    assert "--link &#39;&lt;/script&gt;" in written
    assert len(re.findall(r"<script", re.sub(r"<script>.*?</script>", "", written, flags=re.DOTALL))) == 1


def test_sizes_beyond_the_last_bin_are_open() -> None:
    (size,) = [row for row in messages_table(one_np()).groups["np 48"] if row[2] == "75 MiB"]
    assert size[0] == f"> {64 * MIB >> 20} MiB"
