"""guard.py COMMAND...: runs a command and, when standard input closes, ends it with everything that
it started.

Standard input is a pipe from the set-up. It closes even when the set-up is killed outright, so no
compiler is left running.
"""

import os
import signal
import subprocess
import sys
import threading


def end_group_when_input_closes() -> None:
    """Wait for the other end of the pipe to go, then kill this process group."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=end_group_when_input_closes, daemon=True).start()
    sys.exit(child.wait())
