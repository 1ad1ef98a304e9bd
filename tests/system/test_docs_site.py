"""`make docs` builds without warnings; the site works offline, search included."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Request

from tests.conftest import HANG_SECONDS

CLONE = Path(__file__).parents[2]
WIDTHS = {"desktop": 1280, "phone": 375}
PAGES = ("index", "tutorials/profile-your-script", "reference/commands/launch", "reference/knobs", "results/benchmarks")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="the docs group is not installed: make setup-docs"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=CLONE,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_holds_no_compiled_python(site: Path) -> None:
    assert not list(site.rglob("*.pyc"))


def test_every_command_has_its_page(site: Path) -> None:
    from hvscale.cli.main import PANEL_OF

    for command in PANEL_OF:
        assert f"hvscale {command}" in (site / "reference" / "commands" / f"{command}.html").read_text()


def test_documents_have_schemas(site: Path) -> None:
    def schema(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((site / "reference" / "schemas" / f"{name}.json").read_text())
        return found

    breakdown = schema("breakdown-1")["properties"]
    assert breakdown["schema"]["const"] == "hvscale/breakdown/1"
    assert {"rows", "by_rank", "waiting"} <= breakdown.keys()
    bench = schema("bench-2")
    assert {"rows", "crossovers"} <= bench["properties"].keys()
    assert {"mpi", "nodes"} <= bench["$defs"]["LaunchOptions"]["properties"].keys()
    assert "decision" in schema("tune-collectives-2")["properties"]


def test_schemas_named_in_the_docs_exist(site: Path) -> None:
    known = {re.sub(r"-(\d+)$", r"/\1", file.stem) for file in (site / "reference" / "schemas").glob("*.json")}
    for page in (CLONE / "docs").rglob("*.md"):
        for name in re.findall(r"hvscale/([a-z-]+/\d+)", page.read_text()):
            assert name in known, f"{page}: {name}"


def test_no_page_loads_a_file_from_another_host(site: Path) -> None:
    external = re.compile(
        r"<(?:script|img|iframe)[^>]*src=\"?https?:|<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*href=\"?https?:"
    )
    for page in site.rglob("*.html"):
        assert not external.search(page.read_text()), page


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_pages_fit_the_screen_and_send_no_request(site: Path, new_page: Callable[..., Page], width: int) -> None:
    page = new_page(width, 800)
    requests: list[str] = []

    def record_request(request: Request) -> None:
        if not request.url.startswith(("file:", "data:")):
            requests.append(request.url)

    page.on("request", record_request)
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert requests == []


def test_search_works_without_a_server(site: Path, new_page: Callable[..., Page]) -> None:
    page = new_page()
    page.goto((site / "how-to" / "index.html").as_uri())
    page.keyboard.press("f")
    page.keyboard.type("exposed communication")
    page.wait_for_selector(".md-search-result__item a")
    assert "Waiting and exposed communication" in page.inner_text(".md-search-result__list")


def test_the_copy_button_takes_the_commands_of_a_console_block(site: Path, new_page: Callable[..., Page]) -> None:
    page = new_page()
    page.goto((site / "tutorials" / "tune.html").as_uri())
    page.evaluate("document.body.append(document.createElement('textarea'))")
    copied = []
    for block in page.locator("div.language-console").all():
        block.hover()
        block.locator("button[data-md-type=copy]").click()
        page.locator("body > textarea").last.fill("")
        page.locator("body > textarea").last.press("Control+V")
        copied.append(page.locator("body > textarea").last.input_value())
    text = (CLONE / "docs" / "tutorials" / "tune.md").read_text()
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    commands = [re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE) for block in blocks]
    assert [one.rstrip("\n") for one in copied] == ["\n".join(lines) for lines in commands]
    assert max(map(len, commands)) > 1
    assert any("\\\n" in command for lines in commands for command in lines)  # continued on the next line
