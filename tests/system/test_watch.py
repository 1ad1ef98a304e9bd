"""`hvscale watch` on real jobs: in a pseudo-terminal, as a document, and as a page in a browser."""

import fcntl
import http.client
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import ConsoleMessage, Page, Request

from tests.conftest import HANG_SECONDS, PROGRAMS, Run, kill_below, processes_below, run_hvscale, wait_until

STEADY = Path(__file__).parent.parent / "profiling" / "programs" / "steady.c"
ALL_REDUCE_BYTES, BROADCAST_BYTES = 64 << 10, 1 << 20
NP = 2
LATE_RANK = 1
PAUSE = 50  # ms of each step in which all ranks sleep: they leave the cores to other tests
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"  # the alternate screen
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
STEPS_PROGRAM = """
import json, os
with open(os.environ["HVSCALE_RUN"] + "/steps.jsonl", "w") as steps:
    for step in range(1, 4):
        steps.write(json.dumps({"step": step, "steps": 3, "images": 32, "seconds": 0.25, "loss": 0.5}) + chr(10))
"""


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("steady") / "steady"
    subprocess.run([PROGRAMS / "mpicc", "-O1", "-Wall", "-o", program, STEADY], check=True)
    return program


@contextmanager
def profiled(folder: Path, program: Path, seconds: int, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a job in runs/job; yield its hvscale process when the ranks communicate."""
    options = ["--run", "runs/job", "--env", "HVPROF_MIB=1", "-np", str(NP), *more]
    command = [str(PROGRAMS / "hvscale"), "profile", *options, "--", str(program)]
    command += map(str, (seconds, LATE_RANK, PAUSE))
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        try:
            log = folder / "runs/job/logs/rank-00000.log"
            wait_until(lambda: log.exists() and b"step 50" in log.read_bytes())
            yield job
        finally:
            job.kill()
            kill_below(folder)


@pytest.fixture(scope="module")
def job_folder(steady: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory of a job that runs during all tests."""
    folder = tmp_path_factory.mktemp("job")
    with profiled(folder, steady, 600):
        yield folder


def watch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAMS / "hvscale"), "watch", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS)


def test_one_sample_of_known_traffic(job_folder: Path) -> None:
    done = watch(job_folder, "--once", "--json", "--interval", "1")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "hvscale/watch/1"
    assert (document["state"], document["np"], document["ranks_recorded"]) == ("running", NP, NP)
    assert document["warnings"] == []
    rows = {row["operation"]: row for row in document["rows"]}
    seconds = document["period_seconds"]
    assert seconds >= 1
    for name, size, per_step in (("allreduce", ALL_REDUCE_BYTES, 2), ("broadcast", BROADCAST_BYTES, 1)):
        row = rows[name]
        assert row["gigabytes_per_second"] * 1e9 == pytest.approx(row["calls_per_second"] * size)
        # A step has so many calls; at both ends of the period a step may be unfinished.
        assert row["calls_per_second"] * seconds == pytest.approx(per_step * document["steps"]["counted"], abs=4)
        assert row["total_calls"] == pytest.approx(NP * per_step * document["steps"]["step"], abs=4 * NP)
        assert row["total_bytes"] == row["total_calls"] * size
    assert document["steps"]["counted"] > 0
    late = document["late_ranks"]["late_ranks"][0]
    assert late["rank"] == LATE_RANK
    assert late["mean_seconds"] > 0.001
    exposed = document["exposed_communication"]
    assert exposed["basis"] == "calls"
    assert 0 < exposed["share_at_least"] <= exposed["share_at_most"] <= 1
    assert any("step" in line["text"] for line in document["log_lines"])
    assert [line["text"] for line in document["log_warnings"]] == ["step 0: warning: red <b>bold</b>"]


def test_the_breakdown_of_a_job_that_runs(job_folder: Path) -> None:
    done = run_hvscale(job_folder, "breakdown", "runs/job", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (still_runs,) = [text for text in document["warnings"] if "hvscale watch" in text]
    assert still_runs.startswith("ranks 0-1 still run: the figures are of their calls until now")
    assert not any("damaged" in text for text in document["warnings"])
    assert document["incomplete"] is None


class Terminal:
    """`hvscale watch` in a pseudo-terminal of 100 x 40."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.settings = termios.tcgetattr(self.theirs)
        self.shown = b""
        # xdist sets these for its workers; they would take precedence over the terminal's own size.
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [PROGRAMS / "hvscale", "watch", *arguments],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color"},
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def read(self) -> bool:
        """Read what the program has written; False if it has ended and nothing is left."""
        has_ended = self.process.poll() is not None
        if select.select([self.ours], [], [], 0 if has_ended else 0.1)[0]:
            self.shown += os.read(self.ours, 65536)
            return True
        return not has_ended

    def wait_for(self, text: bytes, times: int = 1) -> None:
        wait_until(lambda: not self.read() or self.shown.count(text) >= times)
        assert self.shown.count(text) >= times, self.shown

    def end(self) -> int:
        """Wait for the program's end, and return its exit status."""
        wait_until(lambda: not self.read())
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.mark.parametrize("leave", ["q", "\x03", signal.SIGTERM])
def test_the_live_view_restores_the_terminal(job_folder: Path, leave: str | signal.Signals) -> None:
    terminal = Terminal(job_folder, "--interval", "0.3")
    try:
        terminal.wait_for(b"last to arrive", times=3)
        for text in (ENTER, b"job: running for", b"q leaves", b"allreduce", b"calls/s", b"red <b>bold</b>"):
            assert text in terminal.shown
        assert termios.tcgetattr(terminal.theirs) != terminal.settings
        os.write(terminal.ours, b"\x1a x")  # Ctrl-Z and other keys do nothing
        terminal.wait_for(b"last to arrive", times=5)
        if isinstance(leave, str):
            os.write(terminal.ours, leave.encode())
        else:
            terminal.process.send_signal(leave)
        assert terminal.end() == (0 if isinstance(leave, str) else 128 + signal.SIGTERM)
        assert terminal.shown.rfind(LEAVE) > terminal.shown.rfind(ENTER)
        assert terminal.shown.rfind(SHOW_CURSOR) > terminal.shown.rfind(HIDE_CURSOR)
        assert termios.tcgetattr(terminal.theirs) == terminal.settings
    finally:
        terminal.close()
    # The job runs on.
    assert watch(job_folder, "runs/job", "--once", "--interval", "0.2").stdout.startswith("job: running")


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[str]:
    """Start the page; yield its address."""
    command = [str(PROGRAMS / "hvscale"), "watch", *arguments]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(HANG_SECONDS) == 0


def test_the_page_in_a_browser(job_folder: Path, new_page: Callable[..., Page]) -> None:
    problems: list[str] = []

    def check_message(message: ConsoleMessage) -> None:
        problems.append(message.text)

    def check_request(request: Request) -> None:
        if not request.url.startswith((url, "data:")):
            problems.append(request.url)

    with served(job_folder, "--serve", "--interval", "0.5") as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        page = new_page()
        page.on("console", check_message)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", check_request)
        page.goto(url)
        page.wait_for_selector("svg polyline")
        assert page.title().startswith("job: running for")
        for text in ("allreduce", "1 B-128 KiB", "last to arrive", "exposed communication", "share of time"):
            assert text in page.inner_text("main"), text
        # Output is shown as text, not as HTML.
        assert "red <b>bold</b>" in page.inner_text("#warnings")
        first = page.inner_text("#tables tbody tr:nth-child(2)")
        page.wait_for_function(
            "text => document.querySelector('#tables tbody tr:nth-child(2)').innerText != text", arg=first
        )
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not page.is_visible("#lost")
        assert problems == []
    page.wait_for_selector("#lost:visible")


def ask(url: str, path: str | None = None, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=HANG_SECONDS)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, parts.path if path is None else path, headers=given)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_the_server_answers_only_its_own_page(job_folder: Path) -> None:
    with served(job_folder, "--serve", "--interval", "0.5") as url:
        token = urlsplit(url).path.strip("/")
        status, headers, body = ask(url)
        assert status == 200
        assert b"<main>" in body
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        for path in ("state.json", "watch.json"):
            assert json.loads(ask(url, f"/{token}/{path}")[2])
        # Through a tunnel the port is another one.
        assert ask(url, Host="localhost:9000")[0] == 200
        assert ask(url, Host="localhost:9000", Origin="http://localhost:9000")[0] == 200
        wrong: list[tuple[str | None, dict[str, str]]] = [
            ("/", {}),
            ("/wrong/", {}),
            (f"/{token[:-1]}/", {}),
            (f"/{token}", {}),
            (f"/{token}/../../run.json", {}),
            (f"/{token}/run.json", {}),
            (f"/%2e%2e/{token}/", {}),
            ("//", {}),
            (f"/{token}/?x", {}),
            (None, {"Host": "evil.example"}),
            (None, {"Host": f"evil.example:{urlsplit(url).port}"}),
            (None, {"Host": "127.0.0.1.evil.example"}),
            (None, {"Origin": "http://evil.example"}),
            (None, {"Origin": "null"}),
            (None, {"Sec_Fetch_Site": "cross-site"}),
            (None, {"Sec_Fetch_Site": "same-site"}),
        ]
        for place, more in wrong:
            status, headers, body = ask(url, place, **more)
            assert status in (403, 404), (place, more)
            assert token.encode() not in body
        for method in ("POST", "PUT", "OPTIONS", "TRACE"):
            assert ask(url, method=method)[0] == 501
        assert ask(url, method="HEAD")[2] == b""
        # Connections that say nothing do not keep others from the page for longer than their time.
        idle = [socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) for _ in range(10)]
        assert ask(url)[0] == 200
        for connection in idle:
            connection.close()
        # It listens on this machine only.
        listening = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=False).stdout
        assert f"0.0.0.0:{urlsplit(url).port}" not in listening
        done = watch(job_folder, "--serve", str(urlsplit(url).port))
        assert done.returncode == 2
        assert done.stderr.splitlines() == [
            f"hvscale: port {urlsplit(url).port} is in use: give another with --serve PORT"
        ]


def test_a_job_that_is_only_counted(steady: Path, tmp_path: Path) -> None:
    with profiled(tmp_path, steady, 600, "--record", "counters"):
        document = json.loads(watch(tmp_path, "--once", "--json", "--interval", "1").stdout)
        shown = watch(tmp_path, "--once", "--interval", "0.2").stdout
    rows = {row["operation"]: row for row in document["rows"]}
    counted = document["steps"]["counted"]
    assert rows["allreduce"]["calls_per_second"] * document["period_seconds"] == pytest.approx(2 * counted, abs=4)
    assert document["exposed_communication"]["basis"] == "counters"
    assert 0 < document["exposed_communication"]["share_at_least"] <= 1
    assert document["late_ranks"] is None
    assert "counters only" in document["unavailable"]["late_ranks"]
    assert "last ranks to arrive: unknown, because the job records counters only" in shown.replace("\n", " ")


def last_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("killed", ["hvscale", "rank"])
def test_a_job_that_is_killed_meanwhile(hvscale: Run, steady: Path, tmp_path: Path, killed: str) -> None:
    with profiled(tmp_path, steady, 600) as job:
        command = [str(PROGRAMS / "hvscale"), "watch", "--interval", "0.3"]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watching:
            assert watching.stdout is not None
            first = watching.stdout.readline()
            assert re.match(
                r"\d\d:\d\d:\d\d job: running for .*; step \d+, .* calls/s, .* in collectives; last: rank", first
            )
            if killed == "hvscale":
                job.kill()
            else:
                ranks = processes_below(tmp_path, named="steady")
                ranks[0].kill()
            out, errors = watching.communicate(timeout=HANG_SECONDS)
        assert watching.returncode == 0
        state = "interrupted" if killed == "hvscale" else "failed"
        assert f"job: {state} after" in out
        assert "allreduce" in out
        assert last_lines(errors)[-1] == f"the run has ended: {state}"
    # Its last state can be looked at later, and agrees with the breakdown.
    document: dict[str, Any] = json.loads(hvscale("watch", "runs/job", "--once", "--json").stdout)
    assert (document["state"], document["period"], document["seconds_without_calls"]) == (state, "run", None)
    breakdown = json.loads(hvscale("breakdown", "runs/job", "--json", "--no-explain").stdout)
    totals = [(row["operation"], row["total_calls"], row["total_bytes"]) for row in document["rows"]]
    assert totals == [(row["operation"], row["calls"], row["bytes"]) for row in breakdown["rows"]]
    done = hvscale("watch")
    assert done.returncode == 2
    assert "is running: give the folder of a run" in done.stderr


def test_steps_without_a_profile(hvscale: Run, program: Callable[[str], Path]) -> None:
    assert hvscale("launch", "--run", "job", "--", "python", program(STEPS_PROGRAM)).returncode == 0
    done = hvscale("watch", "job", "--once")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("job: finished after")
    assert "step 3 of 3, 128 images/s, 250 ms a step, loss 0.5" in done.stdout
    assert "no table: no rank has a profile: messages are recorded under `hvscale profile`" in done.stdout


def test_bad_input_is_one_line(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (("nowhere",), "is not a folder"),
        (("empty",), "is not the folder of a run"),
        ((), "no run in"),
        (("--json",), "add --once"),
        (("--once", "--serve"), "leave out --once"),
        (("--serve", "99999"), "--serve"),
    ):
        done = hvscale("watch", *arguments)
        assert done.returncode == 2, arguments
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
