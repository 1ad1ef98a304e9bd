"""Doing several things at the same time, in a way that a limit or a signal can end."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from hvscale.launch.supervision import interrupts

Item = TypeVar("Item")
Result = TypeVar("Result")
AT_ONCE = 8


def run_all(commands: Sequence[Sequence[str]], seconds: float) -> list[subprocess.CompletedProcess[str] | None]:
    """Run programs at the same time; returns how each ended, None for one that had to be killed
    after `seconds`.

    None of them stays when the wait is interrupted. Raises OSError when one cannot be started.
    """
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        started = []
        for words in commands:
            # Files and not pipes: what a program leaves running may hold a pipe open.
            files = [stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(2)]
            with interrupts.held_back():
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=files[0], stderr=files[1], start_new_session=True
                )
                stack.callback(end_session, process)
            started.append((process, files))
        return [ended(process, files, deadline) for process, files in started]


def ended(
    process: "subprocess.Popen[Any]", files: list[Any], deadline: float
) -> subprocess.CompletedProcess[str] | None:
    try:
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    for file in files:
        file.seek(0)
    stdout, stderr = (file.read() for file in files)
    return subprocess.CompletedProcess(process.args, status, stdout, stderr)


def end_session(process: "subprocess.Popen[Any]") -> None:
    """SIGKILL to a program that was started in a session of its own, and to what it has started
    there.
    """
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start(function: Callable[[], Result], result: "Future[Result]") -> None:
    """Call `function` in a thread of its own: a signal that ends the wait for its result does not
    end the call.
    """

    def work() -> None:
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`function` of each item, `AT_ONCE` at the same time; raises what the first that failed
    raised.

    The threads are daemons: an interrupted wait does not wait for theirs.
    """
    waiting: SimpleQueue[tuple[Item, Future[Result]]] = SimpleQueue()
    results: list[Future[Result]] = []
    for item in items:
        results.append(Future())
        waiting.put((item, results[-1]))

    def work() -> None:
        with suppress(Empty):
            while True:
                item, result = waiting.get_nowait()
                try:
                    result.set_result(function(item))
                except Exception as error:
                    result.set_exception(error)

    for _ in range(min(AT_ONCE, len(items))):
        threading.Thread(target=work, daemon=True).start()
    return [result.result() for result in results]
