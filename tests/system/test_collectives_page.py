"""The page of a study of collectives in a browser."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from hvscale.comm_tuning.collectives.report.page import page as render
from tests.comm_tuning.collective_studies import study

HOSTILE = "<script>throw new Error('library')</script>"
PLACES = 4


def test_the_page_of_a_study_of_collectives(open_page: Callable[..., Page], tmp_path: Path) -> None:
    file = tmp_path / "tune-collectives.html"
    file.write_text(render(study().model_copy(update={"library": HOSTILE, "warnings": ["few cores"]})))
    for width in (1280, 390):
        page = open_page(file, width)
        for name in ("latency", "bandwidth", "gain"):
            for number in range(PLACES):
                expect(page.locator(f"#{name}-{number} .scatterlayer .trace")).not_to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert HOSTILE in page.inner_text("header")
        assert "times as fast as the library" in page.inner_text("#answer")
        assert page.is_visible("text=few cores")
    page = open_page(file)
    # Broadcast on 4 ranks: three rules, each a labelled band, and a line for every algorithm.
    expect(page.locator("#latency-3 .shapelayer path")).to_have_count(3)
    expect(page.locator("#latency-3 .annotation")).to_have_count(3)
    before = page.locator("#latency-3 .scatterlayer .trace").count()
    page.locator("#latency-3 .legendtoggle").first.click()
    expect(page.locator("#latency-3 .scatterlayer .trace")).not_to_have_count(before)
    assert not page.is_visible("#case-3 td >> text=geometric mean")
    page.click("#case-3 summary")
    assert page.is_visible("#case-3 td >> text=geometric mean")
    page.click("nav a >> text=broadcast, np 4")
    assert page.url.endswith("#case-3")
