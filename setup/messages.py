"""What the set-up says on standard error, and the two ways in which it ends early."""

import sys


class SetUpError(Exception):
    """Printed as one line, without a traceback; the message says what is missing and how to mend
    it.
    """


class InterruptedBySignal(BaseException):
    """SIGINT, SIGTERM or SIGHUP came; what was under way is undone on the way out."""


def say(text: str) -> None:
    """Print one line of progress or the one line of an error."""
    print(f"hvscale set-up: {text}", file=sys.stderr, flush=True)
