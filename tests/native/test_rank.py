"""The parent of a rank's command (native/rank), compiled with the address sanitizer."""

import contextlib
import fcntl
import json
import os
import select
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.launch.supervision.rank_order import FORMAT, counted
from tests.conftest import HANG_SECONDS
from tests.native import FLAGS, NATIVE, sources

RANK, LOCAL_RANK = "TEST_RANK", "TEST_LOCAL_RANK"


@pytest.fixture(scope="module")
def hvrank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("rank") / "hvrank"
    log = str(NATIVE / "common" / "log.c")
    subprocess.run(
        [
            "cc",
            *FLAGS,
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover",
            "-o",
            str(program),
            *sources("rank"),
            log,
        ],
        check=True,
    )
    return program


def order_of(
    command: list[str], devices: str = "all", library_variable: str = "", variables: list[str] | None = None
) -> bytes:
    words = [FORMAT, devices, library_variable, *counted(variables or []), *counted(command)]
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def make_run(folder: Path, order: bytes) -> Path:
    for name in ("ranks", "logs"):
        (folder / name).mkdir(parents=True)
    (folder / "ranks" / "order").write_bytes(order)
    return folder


def start(hvrank: Path, run: Path, **environment: str) -> "subprocess.Popen[str]":
    passed = {"PATH": os.environ["PATH"], RANK: "3", LOCAL_RANK: "1", **environment}
    words = [str(hvrank), str(run), f"TEST_OTHER,{RANK}", f"TEST_OTHER,{LOCAL_RANK}"]
    return subprocess.Popen(
        words,
        env=passed,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def finish(started: "subprocess.Popen[str]", run: Path) -> tuple[int, str, dict[str, Any], str]:
    """The exit status, stderr, the rank's record and its log."""
    _, problems = started.communicate(timeout=HANG_SECONDS)
    record, log = run / "ranks" / "rank-00003.json", run / "logs" / "rank-00003.log"
    return (
        started.returncode,
        problems,
        json.loads(record.read_text()) if record.exists() else {},
        log.read_text(errors="replace") if log.exists() else "",
    )


def outcome(hvrank: Path, folder: Path, order: bytes, **environment: str) -> tuple[int, str, dict[str, Any], str]:
    run = make_run(folder, order)
    return finish(start(hvrank, run, **environment), run)


def test_a_command_with_its_variables_output_and_status(hvrank: Path, tmp_path: Path) -> None:
    before = time.time()
    script = 'echo "$WORD $HVSCALE_INIT_MARKER"; echo problem >&2; exit 7'
    order = order_of(["sh", "-c", script], variables=["WORD=a=b\nc", "HVSCALE_INIT_MARKER=/run/ranks"])
    status, problems, record, log = outcome(hvrank, tmp_path / "run", order)
    assert (status, problems) == (7, "")
    assert log == "a=b\nc /run/ranks/rank-00003\nproblem\n"
    assert record["rank"] == 3
    assert record["exit_status"] == 7
    assert record["host"] == os.uname().nodename
    assert before < record["started_at"] <= record["ended_at"] < time.time()
    assert record["devices"] == {"variables": {"CUDA_VISIBLE_DEVICES": None}, "offered": 0}


def test_stdin_of_a_command_is_empty(hvrank: Path, tmp_path: Path) -> None:
    # The test holds hvrank's stdin open, as Open MPI 5 holds that of rank 0.
    status, _, _, log = outcome(hvrank, tmp_path / "run", order_of(["readlink", "/proc/self/fd/0"]))
    assert (status, log) == (0, "/dev/null\n")


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 2, "signal 36")])
def test_a_command_that_a_signal_ends(hvrank: Path, tmp_path: Path, number: int, name: str) -> None:
    order = order_of(["sh", "-c", f"echo last words; kill -{int(number)} $$"])
    status, _, record, log = outcome(hvrank, tmp_path / "run", order)
    assert status == 128 + number
    assert record["signal"] == name
    assert "exit_status" not in record
    assert log == "last words\n"


@pytest.mark.parametrize("forwarded", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_reach_the_command(hvrank: Path, tmp_path: Path, forwarded: signal.Signals) -> None:
    name = forwarded.name.removeprefix("SIG")
    script = f"exec 2>/dev/null; trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
    run = make_run(tmp_path / "run", order_of(["sh", "-c", script]))
    started = start(hvrank, run)
    wait_for_text(run / "logs" / "rank-00003.log", "ready")
    started.send_signal(forwarded)
    status, _, record, log = finish(started, run)
    assert (status, record["exit_status"], log) == (5, 5, f"ready\ngot {name}\n")


def test_signals_reach_what_the_command_starts(hvrank: Path, tmp_path: Path) -> None:
    program = "exec 2>/dev/null; trap 'echo got TERM; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    run = make_run(tmp_path / "run", order_of(["sh", "-c", f"sh -c {shlex.quote(program)}; exit 6"]))
    started = start(hvrank, run)
    wait_for_text(run / "logs" / "rank-00003.log", "ready")
    started.send_signal(signal.SIGTERM)
    status, _, record, log = finish(started, run)
    assert (status, record["signal"], log) == (128 + signal.SIGTERM, "SIGTERM", "ready\ngot TERM\n")


def test_a_signal_after_the_commands_end_does_not_reach_what_it_has_left(hvrank: Path, tmp_path: Path) -> None:
    child = "trap 'echo got TERM' TERM; while :; do sleep 0.05; done"
    order = order_of(["sh", "-c", f"(exec >/dev/null; {child}) & echo $! $$; exit 4"])
    run = make_run(tmp_path / "run", order)
    started = start(hvrank, run)
    log = run / "logs" / "rank-00003.log"
    wait_for_text(log, "\n")
    left, command = map(int, log.read_text().split())
    wait_until_ended(command)
    started.send_signal(signal.SIGTERM)
    status, _, _, text = finish(started, run)
    assert not has_ended(left)
    os.kill(left, signal.SIGKILL)
    assert (status, "TERM" in text) == (4, False)


def wait_for_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"{path} has no {text!r}"
        time.sleep(0.02)


@pytest.mark.parametrize("closes_output", [False, True])
def test_the_command_ends_with_its_launcher(hvrank: Path, tmp_path: Path, closes_output: bool) -> None:
    """Also a command without stdout and stderr."""
    pid_file = tmp_path / "pid"
    more = "exec >&- 2>&-; " if closes_output else ""
    script = f"trap '' TERM HUP; echo ready; {more}echo $$ >{pid_file}; while :; do sleep 0.05; done"
    run = make_run(tmp_path / "run", order_of(["sh", "-c", script]))
    started = start(hvrank, run)
    wait_for_text(pid_file, "\n")
    started.kill()
    started.communicate(timeout=HANG_SECONDS)
    record = run / "ranks" / "rank-00003.json"
    wait_for_text(record, "ended_at")
    ended = json.loads(record.read_text())
    assert (ended["signal"], ended["killed_by_launcher"], ended["pid"]) == ("SIGKILL", True, int(pid_file.read_text()))
    assert ended["last_output_at"] > 0


@pytest.mark.parametrize("command_ends", [False, True])
def test_what_the_command_has_started_ends_with_the_launcher(hvrank: Path, tmp_path: Path, command_ends: bool) -> None:
    """Also if the command itself ends as soon as its launcher has gone."""
    pid_file = tmp_path / "pid"
    program = f"trap '' TERM HUP; echo $$ >{pid_file}; while :; do sleep 0.05; done"
    outer = f"sh -c {shlex.quote(program)} & launcher=$1; "
    outer += "while kill -0 $launcher; do sleep 0.05; done" if command_ends else "wait"
    run = make_run(tmp_path / "run", b"")
    launcher_file = tmp_path / "launcher"
    outer = outer.replace("$1", f"$(while ! cat {launcher_file}; do sleep 0.05; done)")
    (run / "ranks" / "order").write_bytes(order_of(["sh", "-c", f"exec 2>/dev/null; {outer}"]))
    started = start(hvrank, run)
    launcher_file.write_text(str(started.pid))
    wait_for_text(pid_file, "\n")
    started.kill()
    started.communicate(timeout=HANG_SECONDS)
    wait_for_text(run / "ranks" / "rank-00003.json", "ended_at")
    wait_until_ended(int(pid_file.read_text()))


def test_a_child_that_keeps_the_terminal_is_not_waited_for(hvrank: Path, tmp_path: Path) -> None:
    order = order_of(["sh", "-c", "sleep 1200 & echo $! ; exit 4"])
    status, _, record, log = outcome(hvrank, tmp_path / "run", order)
    assert (status, record["exit_status"]) == (4, 4)
    os.kill(int(log), signal.SIGKILL)


F_SETPIPE_SZ = 1031


class SlowLog:
    """A pipe of one page in place of a rank's log: hvrank waits until the test reads it."""

    def __init__(self, run: Path) -> None:
        path = run / "logs" / "rank-00003.log"
        os.mkfifo(path)
        # Opened before hvrank starts: a pipe cannot shrink below what it already holds.
        self.file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(self.file, F_SETPIPE_SZ, 4096)

    def __enter__(self) -> "SlowLog":
        readable, _, _ = select.select([self.file], [], [], HANG_SECONDS)
        assert readable, "hvrank wrote nothing to the log"
        os.set_blocking(self.file, True)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.file)

    def read(self, pause: float) -> str:
        """All of it, a page at a time."""
        text = ""
        while page := os.read(self.file, 4096):
            text += page.decode()
            time.sleep(pause)
        return text


def has_ended(pid: int) -> bool:
    """Whether the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + 30
    while not has_ended(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


def lines(count: int) -> str:
    return f"i=0; while [ $i -lt {count} ]; do echo line $i; i=$((i+1)); done"


def test_what_a_child_writes_after_the_command_is_logged(hvrank: Path, tmp_path: Path) -> None:
    """Also if the command ended while hvrank wrote to the log."""
    pid_file, proceed = tmp_path / "pid", tmp_path / "proceed"
    late = f"(while [ ! -e {proceed} ]; do sleep 0.02; done; echo late) &"
    run = make_run(tmp_path / "run", order_of(["sh", "-c", f"{late} echo $$ >{pid_file}; {lines(600)}; echo end"]))
    log = SlowLog(run)
    started = start(hvrank, run)
    with log:
        wait_for_text(pid_file, "\n")
        wait_until_ended(int(pid_file.read_text()))
        proceed.touch()
        text = log.read(0)
    assert started.wait(timeout=HANG_SECONDS) == 0
    assert text.endswith("line 599\nend\nlate\n")


def test_a_slow_log_gets_all_of_the_output(hvrank: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", order_of(["sh", "-c", f"sleep 1200 & echo $!; {lines(3000)}; echo end"]))
    log = SlowLog(run)
    started = start(hvrank, run)
    with log:
        text = log.read(0.4)
    os.kill(int(text.split()[0]), signal.SIGKILL)
    assert started.wait(timeout=HANG_SECONDS) == 0
    assert text.endswith("line 2999\nend\n")


@pytest.mark.parametrize("writer", ["yes", "while :; do echo y; sleep 0.01; done"])
def test_a_child_that_never_stops_writing_is_not_waited_for(hvrank: Path, tmp_path: Path, writer: str) -> None:
    pid_file = tmp_path / "pid"
    order = order_of(["sh", "-c", f"trap '' HUP; ({writer}) & echo $! >{pid_file}; exit 4"])
    status, _, record, _ = outcome(hvrank, tmp_path / "run", order)
    assert (status, record["exit_status"]) == (4, 4)
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_the_path_of_the_jobs_variables_is_searched(hvrank: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "own-program"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    order = order_of(["own-program"], variables=[f"PATH={tmp_path}:{program.parent}:{os.environ['PATH']}"])
    assert outcome(hvrank, tmp_path / "run", order)[3] == "found\n"


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(None, "No such file or directory"), (0o755, "Exec format error"), (0o644, "Permission denied")],
)
def test_a_command_that_cannot_start(hvrank: Path, tmp_path: Path, mode: int | None, reason: str) -> None:
    """An empty file is not taken for a shell script that does nothing."""
    program = tmp_path / "program"
    if mode is not None:
        program.touch()
        program.chmod(mode)
    status, _, record, log = outcome(hvrank, tmp_path / "run", order_of([str(program)]))
    assert (status, record["exit_status"]) == (127, 127)
    assert log == f"hvscale: cannot start {program}: {reason}\n"


@pytest.mark.parametrize(
    ("devices", "listed", "expected"),
    [
        ("all", "4,5", {"CUDA_VISIBLE_DEVICES": "4,5"}),
        ("own", "4,5,6", {"CUDA_VISIBLE_DEVICES": "5"}),
        ("own", "GPU-a,GPU-b", {"CUDA_VISIBLE_DEVICES": "GPU-b"}),
        ("own", "", {"CUDA_VISIBLE_DEVICES": "1"}),
        ("split", "4,5", {"CUDA_VISIBLE_DEVICES": "5", "LIBRARY_DEVICES": "4,5"}),
    ],
)
def test_devices(hvrank: Path, tmp_path: Path, devices: str, listed: str, expected: dict[str, str]) -> None:
    order = order_of(["env"], devices, "LIBRARY_DEVICES" if devices == "split" else "")
    _, _, record, log = outcome(hvrank, tmp_path / "run", order, CUDA_VISIBLE_DEVICES=listed)
    seen = dict(line.split("=", 1) for line in log.splitlines())
    assert {name: seen.get(name) for name in expected} == expected
    assert record["devices"]["variables"] == expected


def test_a_rank_without_a_gpu_says_so(hvrank: Path, tmp_path: Path) -> None:
    order = order_of(["true"], "own")
    status, _, record, log = outcome(hvrank, tmp_path / "run", order, CUDA_VISIBLE_DEVICES="7")
    assert (status, record["exit_status"]) == (2, 2)
    assert log.startswith("hvscale: --devices own: local rank 1 has no GPU: its node offers 7; start fewer ranks")


@pytest.mark.parametrize("name", ["rank-00003.log", "rank-00003.json"])
def test_files_that_cannot_be_written_do_not_stop_the_command(hvrank: Path, tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run", order_of(["sh", "-c", "echo shown; exit 6"]))
    (run / ("logs" if name.endswith("log") else "ranks") / name).mkdir()
    started = start(hvrank, run)
    _, problems = started.communicate(timeout=HANG_SECONDS)
    assert started.returncode == 6
    assert ("this rank's output goes to the terminal only\nshown" in problems) == name.endswith("log")


def test_a_launcher_that_closed_the_standard_files(hvrank: Path, tmp_path: Path) -> None:
    """The log cannot be opened either, so that the terminal could get the number of stdout."""
    run = make_run(tmp_path / "run", order_of(["sh", "-c", f"echo out && echo err >&2 && touch {tmp_path}/written"]))
    (run / "logs" / "rank-00003.log").mkdir()
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", str(hvrank), str(run), RANK, LOCAL_RANK],
        env={"PATH": os.environ["PATH"], RANK: "3", LOCAL_RANK: "1"},
        check=False,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0
    assert (tmp_path / "written").exists()


def test_without_a_rank_number_nothing_starts(hvrank: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", order_of(["touch", str(tmp_path / "started")]))
    done = subprocess.run(
        [str(hvrank), str(run), "A,B", "C"],
        env={"PATH": os.environ["PATH"]},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "hvscale: no rank number in the environment (looked for A,B)\n"
    assert not (tmp_path / "started").exists()


ORDER = order_of(["true", "word"], "own", "LIBRARY_DEVICES", ["NAME=value"])


@settings(max_examples=60, deadline=None)
@given(
    cut=st.integers(0, len(ORDER) - 1), flip=st.none() | st.tuples(st.integers(0, len(ORDER) - 1), st.integers(1, 255))
)
def test_a_damaged_order_starts_nothing_or_ends_cleanly(
    hvrank: Path, tmp_path_factory: pytest.TempPathFactory, cut: int, flip: tuple[int, int] | None
) -> None:
    damaged = bytearray(ORDER if flip else ORDER[:cut])
    if flip:
        damaged[flip[0]] ^= flip[1]
    status, problems, record, log = outcome(hvrank, tmp_path_factory.mktemp("damaged") / "run", bytes(damaged))
    assert "Sanitizer" not in problems + log
    assert "runtime error" not in problems + log
    if flip is None:
        assert status == 1
        assert problems.endswith("/ranks/order is damaged or of another version of hvscale\n")
        assert record["exit_status"] == 1
