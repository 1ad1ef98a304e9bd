"""Runs in the job once for each rank: starts the user's command and records its output and end.

Standard library only and no import of hvscale, because a rank may run where only the run folder and
Python are available. The flavour's launcher starts it as `python -I -S rank.py RUN RANK_VARIABLES
LOCAL_RANK_VARIABLES`. The last two are comma-separated lists of variables that may hold this rank's
number and its number on the node. It reads the command from RUN/run.json, writes
RUN/logs/rank-NNNNN.log while the command runs, and RUN/ranks/rank-NNNNN.json when the command
starts and when it ends. Its exit status is the command's, or 128 + signal.

It consists of two processes: the one that the launcher started, and its child in another session,
the supervisor, which is the command's parent. After an abort, Hydra sends SIGKILL to the process
group that it started. The supervisor is not in that group, so it still records the rank's last
output and end.
"""

import contextlib
import ctypes
import json
import os
import pty
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType

VISIBLE = "CUDA_VISIBLE_DEVICES"
CHECK_SECONDS = 1.0
DRAIN_SECONDS = 0.5
# Time for a command to end after its launcher has gone, so that an aborting command keeps its
# status.
ABORT_SECONDS = 0.3
PR_SET_PDEATHSIG = 1
# Python ignores the last two from its start, and an ignored signal stays ignored across exec.
DEFAULT_IN_COMMAND = (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
BYTES = "surrogateescape"  # writes paths and names that are not valid UTF-8 unchanged
STATUS_WRONG_REQUEST = 2
STATUS_NOT_FOUND = 127


def number_from(names: list[str]) -> int:
    """The value of the first of these environment variables that is set."""
    for name in names:
        if name in os.environ:
            return int(os.environ[name])
    raise SystemExit(f"hvscale: no rank number in the environment (looked for {', '.join(names)})")


def offered_devices() -> int:
    """The number of NVIDIA GPUs that this process could open, counted by their device files.

    A container may have only some of them.
    """
    return sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir("/dev"))  # noqa: PTH208


def device_variables(
    policy: str,
    library_variable: str | None,
    environment: dict[str, str],
    offered: int,
    local_rank_variables: list[str],
) -> dict[str, str]:
    """The variables that select this rank's GPUs.

    Raises ValueError if the node has GPUs, but none for this rank.
    """
    if policy == "all":
        return {}
    local = number_from(local_rank_variables)
    listed = environment.get(VISIBLE) or ",".join(map(str, range(offered)))
    devices = listed.split(",") if listed else []
    if devices and local >= len(devices):
        raise ValueError(
            f"hvscale: --devices {policy}: local rank {local} has no GPU: its node offers {listed};  "
            "start fewer ranks on it, or use --devices all"
        )
    variables = {VISIBLE: devices[local] if devices else str(local)}
    if library_variable:
        variables[library_variable] = listed
    return variables


def rank_file(run: str, rank: int) -> str:
    return os.path.join(run, "ranks", f"rank-{rank:05d}.json")  # noqa: PTH118


def write_json(path: str, document: dict[str, object]) -> None:
    """Write the file atomically, because the controller may read it at any time.

    A full disk must not end the job.
    """
    temporary = f"{path}.{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o666), "w") as stream:
            json.dump(document, stream)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108


def write_end(run: str, rank: int, pid: int, end: dict[str, object]) -> None:
    """Record the end of a rank whose supervisor did not see its command end."""
    state = {"rank": rank, "host": os.uname().nodename, "pid": pid, "ended_at": time.time()}
    write_json(rank_file(run, rank), {**state, **end})


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class Log:
    """The rank's log file. If it cannot be written, output goes to stderr and the job continues."""

    def __init__(self, path: str) -> None:
        self.descriptor = 2
        try:
            self.descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            self.give_up(path, error)
        self.path = path

    def give_up(self, path: str, error: OSError) -> None:
        self.descriptor = 2
        os.write(
            2, f"hvscale: {path}: {error.strerror}; this rank's output goes to the terminal only\n".encode(errors=BYTES)
        )

    def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError as error:
                if self.descriptor == 2:
                    return
                self.give_up(self.path, error)


def start_command(command: list[str], environment: dict[str, str]) -> tuple[int, int]:
    """Fork the command with stdout and stderr on a pseudo-terminal; return its pid and the master.

    C programs then flush line by line, as under mpirun.
    """
    master, slave = pty.openpty()
    tty.setraw(slave, termios.TCSANOW)
    libc = ctypes.CDLL(None)
    pid = os.fork()
    if pid == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in DEFAULT_IN_COMMAND:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(slave, 1)
        os.dup2(slave, 2)
        os.close(master)
        os.close(slave)
        try:
            os.execvpe(command[0], command, environment)  # noqa: S606 - an argument list, no shell
        except OSError as error:
            os.write(2, f"hvscale: cannot start {command[0]}: {error.strerror}\n".encode(errors=BYTES))
            os._exit(STATUS_NOT_FOUND)
    os.close(slave)
    return pid, master


def copy_until_end(pid: int, master: int, launched: int, log: Log) -> tuple[int, bool, float]:
    """Copy the command's output into the log until the command ends.

    `launched` is a pipe that closes when the launched process ends; the command is then killed.
    Returns the command's wait status, whether its launcher had gone, and the time of its last
    output.
    """
    status: int | None = None
    give_up_at = kill_at = float("inf")
    last_output_at = 0.0
    watched = [master, launched]
    while True:
        patience = DRAIN_SECONDS if status is not None else ABORT_SECONDS if kill_at < float("inf") else CHECK_SECONDS
        ready, _, _ = select.select(watched, [], [], patience)
        if launched in ready:
            watched.remove(launched)
            kill_at = time.monotonic() + ABORT_SECONDS
            if status is None:
                os.kill(pid, signal.SIGCONT)  # a stopped command may have output left
        readable = master in ready
        if readable:
            try:
                data = os.read(master, 65536)
            except OSError:  # Linux reports EIO when no process has the terminal open
                data = b""
            if data:
                log.write(data)
                last_output_at = time.time()
            else:
                break
        if status is None:
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                status, give_up_at = code, time.monotonic() + DRAIN_SECONDS
            elif time.monotonic() > kill_at:
                os.kill(pid, signal.SIGKILL)
        elif not readable or time.monotonic() > give_up_at:
            break  # a child of the command still has the terminal open; do not wait for it
    if status is None:
        _, status = os.waitpid(pid, 0)
    return status, kill_at < float("inf"), last_output_at


def forward_signals_to(pid: int) -> None:
    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for forwarded in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(forwarded, forward)


def supervise(run: str, rank: int, local_rank_variables: list[str], launched: int) -> int:
    """Run the command and write its log, its start and its end.

    Returns the command's exit status, or 128 + signal.
    """
    with open(os.path.join(run, "run.json")) as stream:  # noqa: PTH118, PTH123
        job = json.load(stream)
    environment = {**os.environ, **job["rank_environment"]}
    if "HVSCALE_INIT_MARKER" in environment:
        environment["HVSCALE_INIT_MARKER"] += f"/rank-{rank:05d}"
    log = Log(os.path.join(run, "logs", f"rank-{rank:05d}.log"))  # noqa: PTH118
    state_path = rank_file(run, rank)
    state: dict[str, object] = {"rank": rank, "host": os.uname().nodename, "pid": os.getpid()}

    offered = offered_devices()
    try:
        policy, library_variable = job["launch"].get("devices", "all"), job["library_devices_variable"]
        environment |= device_variables(policy, library_variable, environment, offered, local_rank_variables)
    except ValueError as error:
        log.write(f"{error}\n".encode(errors=BYTES))
        write_end(run, rank, os.getpid(), {"exit_status": STATUS_WRONG_REQUEST})
        return STATUS_WRONG_REQUEST
    shown = [VISIBLE, *filter(None, [library_variable])]
    state["devices"] = {"variables": {name: environment.get(name) for name in shown}, "offered": offered}

    pid, master = start_command(job["command"], environment)
    forward_signals_to(pid)
    state |= {"pid": pid, "started_at": time.time()}
    write_json(state_path, state)

    status, killed_by_launcher, last_output_at = copy_until_end(pid, master, launched, log)
    ended_at = time.time()
    if killed_by_launcher:
        state |= {"killed_by_launcher": True, "last_output_at": last_output_at}
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        write_json(state_path, {**state, "signal": signal_name(number), "ended_at": ended_at})
        return 128 + number
    write_json(state_path, {**state, "exit_status": os.WEXITSTATUS(status), "ended_at": ended_at})
    return os.WEXITSTATUS(status)


def wait_for(supervisor: int, done: int, run: str, rank: int) -> int:
    """Return the supervisor's exit status.

    If the launcher ends first, this process ends too, and the supervisor kills the command. If the
    supervisor was killed, this process records that: Hydra does not end a job when a rank's status
    is not 0.
    """
    launcher = os.getppid()
    while not select.select([done], [], [], CHECK_SECONDS)[0]:
        if os.getppid() != launcher:
            return 128 + signal.SIGHUP
    status = os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    if status >= 0:
        return status
    write_end(run, rank, supervisor, {"signal": signal_name(-status)})
    return 128 - status


def main() -> int:
    run, rank_variables, local_rank_variables = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
    rank = number_from(rank_variables)
    launched, launched_writer = os.pipe()  # the writer closes with this process
    done, done_writer = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(launched_writer)
        os.close(done)
        os.setsid()
        try:
            status = supervise(run, rank, local_rank_variables, launched)
        except BaseException:
            sys.excepthook(*sys.exc_info())  # the traceback module costs 10 ms to import
            status = 1
            write_end(run, rank, os.getpid(), {"exit_status": status})
        os._exit(status)
    os.close(launched)
    os.close(done_writer)
    forward_signals_to(supervisor)
    return wait_for(supervisor, done, run, rank)


if __name__ == "__main__":
    sys.exit(main())
