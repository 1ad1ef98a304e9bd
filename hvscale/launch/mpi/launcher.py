"""An MPI's own launcher as a process: its output in the run's launcher.log, and never alive without its controller."""

import ctypes
import signal
import subprocess
from pathlib import Path

from hvscale.core.files import open_new

PR_SET_PDEATHSIG = 1


def start_launcher(arguments: list[str], environment: dict[str, str], run: Path) -> "subprocess.Popen[bytes]":
    """Start it in a session of its own, so that Ctrl-C reaches the controller alone; no thread may run here yet."""
    libc = ctypes.CDLL(None)

    def end_with_controller() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    with open_new(run / "logs" / "launcher.log") as log:
        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_controller,
        )
