"""Ctrl-C ends a command also when it arrives while an object ends, or before the command begins."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import HANG_SECONDS

PROGRAM = """
import signal, threading, time, weakref
from hvscale.cli import main

start = threading.Thread.start

def slow_start(thread):
    start(thread)
    time.sleep({start_seconds})

threading.Thread.start = slow_start

class Object:
    {method}

def interrupt(*_):
    signal.raise_signal(signal.SIGINT)

def command(**_):
    ending = Object()
    {watch}
    del ending
    time.sleep(1200)

main.app = command
main.main()
"""


@pytest.mark.parametrize("start_seconds", [0, 0.1])
@pytest.mark.parametrize(
    ("method", "watch"),
    [("def __del__(self): interrupt()", "pass"), ("pass", "watch = weakref.ref(ending, interrupt)")],
)
def test_an_interrupt_that_an_objects_end_swallows_comes_again(method: str, watch: str, start_seconds: float) -> None:
    """A busy machine takes long to start a thread."""
    words = [sys.executable, "-c", PROGRAM.format(method=method, watch=watch, start_seconds=start_seconds)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(("before", "status"), [(None, -signal.SIGINT), (signal.SIG_IGN, 0)])
def test_an_interrupt_while_modules_are_loaded_prints_no_traceback(
    tmp_path: Path, before: signal.Handlers | None, status: int
) -> None:
    """A module stands for one that takes long to load; nohup makes the process ignore Ctrl-C."""
    (tmp_path / "typer.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT); os._exit(0)")
    command = Path(sys.executable).with_name("hvscale")
    ignore = None if before is None else partial(signal.signal, signal.SIGINT, before)
    done = subprocess.run(
        [command, "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=ignore,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stderr) == (status, "")
