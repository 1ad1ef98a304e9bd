"""The page of a prediction in a browser."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hvscale.prediction.document import PredictionDocument
from hvscale.prediction.page import page as render
from tests.prediction.predictions import TENSORS, prediction
from tests.prediction.test_prediction_page import documented_only, measured_only, one_np

CHARTS = ("throughput", "efficiency", "loss")


@pytest.fixture
def open_prediction(open_page: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    def open_prediction(document: PredictionDocument, width: int = 1280) -> Page:
        file = tmp_path / "prediction.html"
        file.write_text(render(document))
        return open_page(file, width)

    return open_prediction


def test_the_page_of_a_prediction(open_prediction: Callable[..., Page]) -> None:
    for width in (390, 1280):
        page = open_prediction(prediction(), width)
        for name in CHARTS:
            expect(page.locator(f"#{name} .scatterlayer .trace")).not_to_have_count(0)
        expect(page.locator("#timeline .scatterlayer .point")).to_have_count(TENSORS)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "On 512 ranks" in page.inner_text("#answer")
        assert page.is_visible("text=np 1024 was left out")
    # Two measured and three replayed points, ten of the curve, and one where its parts meet.
    expect(page.locator("#efficiency .scatterlayer .point")).to_have_count(16)
    expect(page.locator("#efficiency path.yerror")).to_have_count(5)
    expect(page.locator("#efficiency .js-fill")).not_to_have_count(0)
    before = page.locator("#efficiency .scatterlayer .trace").count()
    page.locator("#efficiency .legendtoggle").last.click()
    expect(page.locator("#efficiency .scatterlayer .trace")).not_to_have_count(before)
    assert not page.is_visible("#why")
    page.click("summary")
    assert page.is_visible("#why >> text=slowest rank %")
    assert page.is_visible("#messages >> text=128 KiB-16 MiB")


def test_a_message_shows_its_bytes(open_prediction: Callable[..., Page]) -> None:
    page = open_prediction(prediction())
    page.locator("#timeline").scroll_into_view_if_needed()
    page.locator("#timeline .bars .point >> text=44 MiB").last.hover(force=True)
    expect(page.locator("#timeline .hoverlayer")).to_contain_text("message 5 of 5: 44 MiB, tensors: 12")


@pytest.mark.parametrize("document", [documented_only(), one_np(), measured_only()], ids=["documented", "one", "curve"])
def test_pages_with_less_are_drawn(open_prediction: Callable[..., Page], document: PredictionDocument) -> None:
    page = open_prediction(document, 390)
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.locator("#throughput .scatterlayer .point")).not_to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
