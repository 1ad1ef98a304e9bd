"""System programs that placements call: a failure is one line that names the program and the
cause.
"""

import shutil
import subprocess
from collections.abc import Sequence

from hvscale.core.errors import RequestError

TOOL_SECONDS = 60


def require(program: str, package: str, purpose: str) -> str:
    """The path of a program. Raises RequestError, naming the Debian package that brings it, when it
    is not in PATH.
    """
    # Debian keeps administration programs in folders that a user's PATH may lack.
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is None:
        raise RequestError(
            f"{purpose} needs {program}, which is not in PATH: install it (Debian, Ubuntu: apt install {package})"
        )
    return found


def call(words: Sequence[str]) -> str:
    """Run a program and give its stdout. Raises RequestError with its last line of stderr when it
    fails.
    """
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=TOOL_SECONDS,
            start_new_session=True,  # Ctrl-C must not reach what frees a run's network
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"{words[0]} cannot be run: {error}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise RequestError(f"`{' '.join(words)}` failed: {said}")
    return done.stdout
