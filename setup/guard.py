"""guard.py COMMAND...: run a command; kill it and its child processes when stdin closes.

stdin is a pipe from the set-up. It closes even if the set-up gets a SIGKILL, so no compiler keeps
running.
"""

import os
import signal
import subprocess
import sys
import threading


def kill_group_when_stdin_closes() -> None:
    """Wait until the set-up closes the pipe, then kill this process group."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=kill_group_when_stdin_closes, daemon=True).start()
    sys.exit(child.wait())
