"""The view of `hvscale watch`: live on a terminal, which it restores, and plain lines elsewhere."""

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from hvscale.cli.console import print_message, print_text, results
from hvscale.core.plain_rich import FullScreen
from hvscale.profiling.watch.document import Watch
from hvscale.profiling.watch.sampler import WatchSampler
from hvscale.studies.run_watch.text import (
    calls_table,
    facts,
    late_table,
    log_text,
    sentences,
    summary_line,
    title,
)

LEAVE = ("q", "Q", "\x03", "\x04")  # also Ctrl-C and Ctrl-D, where the terminal sends no signal
LOG_LINES = 6
LEAST_ROWS = 3

Wait = Callable[[float], bool]


@contextlib.contextmanager
def key_waiter() -> Iterator[Wait]:
    """Yield a function that waits some seconds, and returns True as soon as `q` is pressed.

    The terminal gets its settings back, also after SIGTERM and SIGHUP. Ctrl-Z does nothing.
    """

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if not sys.stdin.isatty():
            yield _sleep
            return
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        try:
            tty.setcbreak(keyboard)
            settings = termios.tcgetattr(keyboard)
            settings[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(keyboard, termios.TCSANOW, settings)
            yield lambda seconds: _wait_for_key(keyboard, seconds)
        finally:
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
    finally:
        for number, handler in handlers.items():
            # None: a preloaded library's handler, which Python cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _wait_for_key(keyboard: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([keyboard], [], [], left)[0]:
            pressed = os.read(keyboard, 64).decode(errors="replace")
            if not pressed or any(key in pressed for key in LEAVE):
                return True
    return False


def watch_live(sampler: WatchSampler, interval: float) -> None:
    """Show the run on the whole screen until it ends or the user leaves."""
    console = results()
    sample: Watch | None = None
    with contextlib.suppress(KeyboardInterrupt), key_waiter() as wait, FullScreen(console) as screen:
        while True:
            began = time.monotonic()
            sample = sampler.sample()
            if sample.has_ended:
                break
            screen.show(view(sample, console.size.height))
            if wait(max(interval - (time.monotonic() - began), 0.05)):
                break
    if sample is not None:
        print_state(sample)


def watch_plainly(sampler: WatchSampler, interval: float) -> None:
    """Print a line for each interval until the run ends, and then its last state."""
    while not (sample := sampler.sample()).has_ended:
        print_text(summary_line(sample))
        sys.stdout.flush()
        time.sleep(interval)
    print_state(sample)


def sample_once(sampler: WatchSampler, interval: float) -> Watch:
    """A sample of one interval; of a run that has ended, at once."""
    sample = sampler.sample()
    if not sample.has_ended:
        time.sleep(interval)
        sample = sampler.sample()
    return sample


def print_state(watch: Watch) -> None:
    """Print the whole sample."""
    for line in view(watch):
        results().print(line)
    if watch.has_ended:
        print_message(f"the run has ended: {watch.state}")


def view(watch: Watch, height: int | None = None) -> list[RenderableType]:
    """The sample for a terminal of `height` lines; None: everything."""
    lines: list[RenderableType] = [_line(title(watch), "bold"), _line(facts(watch), "dim")]
    if height is not None:
        lines.append(_line("q leaves; the job runs on", "dim"))
    lines += ["", *map(_line, sentences(watch))]
    late = late_table(watch)
    warnings = [_line(text, "yellow") for text in (*watch.warnings, *map(log_text, watch.log_warnings))]
    log = [_line(log_text(line), "dim") for line in watch.log_lines[-LOG_LINES:]]
    rows = 40
    if height is not None:
        below = (len(warnings[-3:]) + 1 if warnings else 0) + (len(log) + 1) + (9 if late is not None else 0)
        rows = max(height - len(lines) - below - 9, LEAST_ROWS)
    if watch.rows or watch.point_to_point:
        lines += ["", calls_table(watch, rows).table()]
    if late is not None:
        lines += ["", late.table()]
    if warnings:
        lines += ["", *(warnings if height is None else warnings[-3:])]
    if log:
        lines += ["", *log]
    return lines


def _line(text: str, style: str = "") -> Text:
    """Text without the colours that rich gives to numbers and paths; foreign text is escaped."""
    return results().render_str(text, style=style, highlight=False)
