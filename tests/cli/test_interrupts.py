"""Ctrl-C ends a command also when it arrives while an object ends."""

import subprocess
import sys

import pytest

PROGRAM = """
import signal, time, weakref
from hvscale.cli import main

class Object:
    {method}

def interrupt(*_):
    signal.raise_signal(signal.SIGINT)

def command(**_):
    ending = Object()
    {watch}
    del ending
    time.sleep(60)

main.app = command
main.main()
"""


@pytest.mark.parametrize(
    ("method", "watch"),
    [("def __del__(self): interrupt()", "pass"), ("pass", "watch = weakref.ref(ending, interrupt)")],
)
def test_an_interrupt_that_an_objects_end_swallows_comes_again(method: str, watch: str) -> None:
    words = [sys.executable, "-c", PROGRAM.format(method=method, watch=watch)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in done.stderr
