"""Starts a program in a node for an agent: agents pass on neither an environment nor signals.

ssh does not pass on the working directory either. Standard library only, no import of hvscale. The
first line of stdin is `{"program": [...], "environment": {...}, "directory": "..."}`; each later
line is the number of a signal for the program. When stdin closes, the controller or the agent has
gone, and the program is killed. The exit status is the program's, or 128 + signal.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys

STATUS_NOT_FOUND = 127
# Python ignores the first two, and `main` the third. An ignored signal stays ignored across exec.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR1)


def read_request() -> tuple[dict[str, object], bytes]:
    """The first line of stdin, and the bytes read after it."""
    data = b""
    while b"\n" not in data:
        new = os.read(0, 65536)
        if not new:
            raise SystemExit("hvscale: the agent closed its connection before it sent the program to start")
        data += new
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def change_directory(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise SystemExit(f"hvscale: {directory}: {error.strerror} on {socket.gethostname()}") from error


def start(program: list[str], environment: dict[str, str]) -> int:
    silence = os.open(os.devnull, os.O_RDONLY)
    try:
        return os.posix_spawnp(
            program[0],
            program,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, silence, 0)],
            setsigdef=IGNORED,
        )
    except OSError as error:
        os.write(2, f"hvscale: cannot start {program[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        raise SystemExit(STATUS_NOT_FOUND) from error
    finally:
        os.close(silence)


def forward_signals(pid: int, pending: bytes) -> None:
    """Forward signals from stdin until the program ends; kill it when stdin closes."""
    ended = os.pidfd_open(pid)
    while True:
        *lines, pending = pending.split(b"\n")
        for line in lines:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, int(line))
        readable, _, _ = select.select([0, ended], [], [])
        if ended in readable:
            return
        new = os.read(0, 4096)
        if not new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        pending += new


def main() -> int:
    # Slurm sends it to all processes of a step, so the program gets it, too, and may have to save.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    request, pending = read_request()
    change_directory(request["directory"])  # type: ignore[arg-type]
    pid = start(request["program"], request["environment"])  # type: ignore[arg-type]
    forward_signals(pid, pending)
    _, status = os.waitpid(pid, 0)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main())
