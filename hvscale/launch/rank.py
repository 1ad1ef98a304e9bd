"""Runs inside the job, once for each rank: starts the user's command and keeps what happens to it.

Standard library only and no import of hvscale, because a rank may run where only the run folder and Python are at hand. It is started as
`python -I -S rank.py RUN` by mpirun or by the Gloo flavour, reads the command from RUN/run.json, writes RUN/logs/rank-NNNNN.log while the
command runs, and RUN/ranks/rank-NNNNN.json when it starts and when it ends. Its own exit status is the command's, or 128 + signal.
"""

import contextlib
import ctypes
import json
import os
import pty
import select
import signal
import socket
import sys
import termios
import time
import tty
from types import FrameType

# Where each launcher says which rank this is: Open MPI, Horovod's Gloo, MPICH and its kin.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK")
CHECK_LAUNCHER_SECONDS = 1.0
DRAIN_SECONDS = 0.5
PR_SET_PDEATHSIG = 1
STATUS_NOT_FOUND = 127


def own_rank() -> int:
    for name in RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    raise SystemExit(f"hvscale: no rank number in the environment (looked for {', '.join(RANK_VARIABLES)})")


def write_json(path: str, document: dict[str, object]) -> None:
    """Whole or not at all: the controller may read at any moment. A full disk must not take the job down."""
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w") as stream:  # noqa: PTH123 - pathlib costs 10 ms at start-up
            json.dump(document, stream)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class Log:
    """The rank's log file. When it cannot be written any more the output goes to stderr instead, and the job goes on."""

    def __init__(self, path: str) -> None:
        self.descriptor = 2
        try:
            self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self.give_up(path, error)
        self.path = path

    def give_up(self, path: str, error: OSError) -> None:
        self.descriptor = 2
        os.write(2, f"hvscale: {path}: {error.strerror}; this rank's output goes to the terminal only\n".encode())

    def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError as error:
                if self.descriptor == 2:
                    return
                self.give_up(self.path, error)


def start(command: list[str], environment: dict[str, str]) -> tuple[int, int]:
    """Fork the command with stdout and stderr on a pseudo-terminal, so that C programs flush line by line as under mpirun."""
    master, slave = pty.openpty()
    tty.setraw(slave, termios.TCSANOW)
    libc = ctypes.CDLL(None)
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(slave, 1)
        os.dup2(slave, 2)
        os.close(master)
        os.close(slave)
        try:
            os.execvpe(command[0], command, environment)  # noqa: S606 - an argument list, no shell
        except OSError as error:
            os.write(2, f"hvscale: cannot start {command[0]}: {error.strerror}\n".encode())
            os._exit(STATUS_NOT_FOUND)
    os.close(slave)
    return pid, master


def copy_until_end(pid: int, master: int, log: Log) -> int:
    """Copy the command's output into the log until it ends; returns its wait status. Ends it when the launcher is gone."""
    launcher = os.getppid()
    status: int | None = None
    give_up_at = float("inf")
    while True:
        readable, _, _ = select.select(
            [master], [], [], DRAIN_SECONDS if status is not None else CHECK_LAUNCHER_SECONDS
        )
        if readable:
            try:
                data = os.read(master, 65536)
            except OSError:  # Linux says EIO when the last holder of the terminal has closed it
                data = b""
            if data:
                log.write(data)
            else:
                break
        if status is None:
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                status, give_up_at = code, time.monotonic() + DRAIN_SECONDS
            elif os.getppid() != launcher:
                os.kill(pid, signal.SIGKILL)
        elif not readable or time.monotonic() > give_up_at:
            break  # a child of the command still holds the terminal: its output is not waited for
    if status is None:
        _, status = os.waitpid(pid, 0)
    return status


def main() -> int:
    run = sys.argv[1]
    rank = own_rank()
    with open(os.path.join(run, "run.json")) as stream:  # noqa: PTH118, PTH123
        job = json.load(stream)
    environment = {**os.environ, **job["rank_environment"]}
    if "HVSCALE_STARTED" in environment:
        environment["HVSCALE_STARTED"] += f"/rank-{rank:05d}"
    log = Log(os.path.join(run, "logs", f"rank-{rank:05d}.log"))  # noqa: PTH118
    state_path = os.path.join(run, "ranks", f"rank-{rank:05d}.json")  # noqa: PTH118

    pid, master = start(job["command"], environment)

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for forwarded in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(forwarded, forward)
    state: dict[str, object] = {"rank": rank, "host": socket.gethostname(), "pid": pid}
    write_json(state_path, state)

    status = copy_until_end(pid, master, log)
    ended_at = time.time()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        write_json(state_path, {**state, "signal": signal_name(number), "ended_at": ended_at})
        return 128 + number
    write_json(state_path, {**state, "exit_status": os.WEXITSTATUS(status), "ended_at": ended_at})
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main())
