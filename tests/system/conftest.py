"""Fixtures for system tests: Docker, Slurm, ssh hosts, network namespaces and a browser."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests import preloaded
from tests.conftest import HANG_SECONDS, Run
from tests.system import services

CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture
def hvscale_warm(tmp_path: Path) -> Run:
    """As `hvscale`, in a forked process that has torch loaded; only for single-process commands."""

    def run(*arguments: object, timeout: float = HANG_SECONDS, **environment: str) -> subprocess.CompletedProcess[str]:
        return preloaded.run([*map(str, arguments)], tmp_path, {**os.environ, "COLUMNS": "200", **environment}, timeout)

    return run


@pytest.fixture(scope="session")
def namespaces() -> None:
    if reason := services.why_no_namespaces():
        pytest.skip(reason)


@pytest.fixture
def cleanup_alone() -> Iterator[None]:
    """No other test leaves, removes or counts what killed runs leave."""
    with services.cleanup_lock(exclusive=True):
        yield


@pytest.fixture
def machine_unchanged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Check that the test's runs leave no process, container, network, namespace or interface."""
    alone = "cleanup_alone" in request.fixturenames
    if alone:
        request.getfixturevalue("cleanup_alone")  # it holds the lock before the first look
    with nullcontext() if alone else services.cleanup_lock(exclusive=False):
        address = os.environ.get("DOCKER_HOST")
        before = services.machine_state(address, tmp_path)
        yield
        assert services.machine_state(address, tmp_path) == before


@pytest.fixture(scope="session")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Docker daemon with the image: a running one, or one for the tests."""
    if address := services.running_daemon():
        services.build_image(address)
        yield address
        return
    if reason := services.why_no_docker():
        pytest.skip(reason)
    with services.docker_daemon(tmp_path_factory.mktemp("docker")) as address:
        services.build_image(address)
        yield address


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a Slurm cluster of four nodes."""
    if reason := services.why_no_slurm():
        pytest.skip(reason)
    with services.slurm_cluster(tmp_path_factory.mktemp("slurm")) as configuration:
        yield configuration


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.SshHosts]:
    if reason := services.why_no_ssh():
        pytest.skip(reason)
    with services.ssh_hosts(tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    expect.set_options(timeout=1000 * HANG_SECONDS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(CHROMIUM_FLAGS))
        yield started
        started.close()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """`new_page(width=1280, height=900)`: a page that waits as long as a busy machine takes."""
    pages: list[Page] = []

    def new_page(width: int = 1280, height: int = 900) -> Page:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(1000 * HANG_SECONDS)
        pages.append(page)
        return page

    yield new_page
    for page in pages:
        page.close()


@pytest.fixture
def open_page(new_page: Callable[..., Page]) -> Iterator[Callable[..., Page]]:
    """`open_page(file, width=1280)`: errors, warnings and requests of a page fail the test."""
    problems: list[str] = []

    def open_page(file: Path, width: int = 1280) -> Page:
        def check_message(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                problems.append(message.text)

        def check_request(request: Request) -> None:
            if not request.url.startswith(("data:", "blob:", file.as_uri())):
                problems.append(request.url)

        page: Page = new_page(width)
        page.on("console", check_message)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", check_request)
        page.goto(file.as_uri())
        return page

    yield open_page
    assert problems == []
