"""Ranks, the launcher or the controller of a profiled C program killed at a random moment."""

import json
import os
import signal
from contextlib import suppress
from functools import partial

import psutil

from fault_classes import FAULTS, FaultClass
from fault_classes._try import Running, Try, ranks_of, wait_for
from hvscale.core.errors import EXIT_DONE, EXIT_RANK_FAILED, EXIT_UNTRUSTED, EXIT_WRONG_REQUEST
from tests.conftest import processes_below

WORDS = ("profile", "-np", 2, "--run", "job", "--", "./steady", 60, -1)
LONGEST_PAUSE = 2.0  # s: from the start, to the connection of the ranks, to their steps
LAUNCHERS = ("prterun", "mpirun", "mpiexec.hydra")
EARLY = 0.3  # of the tries: the kill comes at any time since the start, not only while ranks run


def started(one: Try) -> Running:
    """Start the job and wait for a random moment of its life."""
    one.copy("steady")
    running = one.start(*WORDS)
    if one.random.random() > EARLY:
        wait_for(lambda: len(ranks_of(one.folder)) == 2, running)
    one.pause(LONGEST_PAUSE)
    return running


def check_readable(one: Try) -> None:
    """Raises LostError unless a killed job's run can be read, as far as it came."""
    job = one.folder / "job"
    if not (job / "run.json").exists():
        one.disturbance += ", before run.json"
        return
    listed = one.run("runs", ".", "--json", statuses=(EXIT_DONE,)).document()
    states = [entry["state"] for entry in listed["entries"] if entry["name"].endswith("job")]
    one.require(states and states[0] in ("failed", "interrupted"), f"`hvscale runs` shows the states {states}")
    answer = one.run("breakdown", job, "--json", statuses=(EXIT_DONE, EXIT_UNTRUSTED, EXIT_WRONG_REQUEST))
    if answer.status != EXIT_WRONG_REQUEST:
        answer.document()


def kill_rank(one: Try) -> None:
    """Kill a rank or MPI's launcher: the job ends, says which rank failed, and leaves nothing."""
    running = started(one)
    victim = one.random.choice(["rank 0", "rank 1", "launcher", "all ranks"])
    number = one.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT])
    one.disturbance = f"{victim} {signal.Signals(number).name}"
    wait_for(lambda: len(ranks_of(one.folder)) == 2, running)
    ranks = ranks_of(one.folder)
    launchers = [process for process in psutil.Process(running.pid).children(recursive=True) if is_launcher(process)]
    victims = {
        "launcher": launchers[:1],
        "all ranks": [*ranks.values()],
        "rank 0": [ranks[0]] if 0 in ranks else [],
        "rank 1": [ranks[1]] if 1 in ranks else [],
    }[victim]
    for process in victims:
        with suppress(psutil.Error):
            process.send_signal(number)
    one.judge(running, (EXIT_RANK_FAILED,))
    one.check_no_processes()
    record = json.loads((one.folder / "job/run.json").read_text())
    one.require(record["state"] == "failed", f"run.json has the state {record['state']}")
    check_readable(one)


def is_launcher(process: psutil.Process) -> bool:
    try:
        return process.name() in LAUNCHERS
    except psutil.Error:
        return False


def kill_controller(one: Try, number: int = signal.SIGKILL) -> None:
    """Kill hvscale itself: its ranks end, and `hvscale cleanup` removes the rest."""
    with one.cleaned():
        running = started(one)
        one.disturbance = f"controller {signal.Signals(number).name}"
        if one.random.random() < 0.3:  # as the kernel or a batch system kills a whole job
            one.disturbance += " with all its processes"
            everything = [psutil.Process(running.pid), *processes_below(one.folder)]
            for process in everything:
                with suppress(psutil.Error):
                    process.suspend()
            for process in everything:
                with suppress(psutil.Error):
                    os.kill(process.pid, number)
        running.kill(number)
        running.end()
    check_readable(one)


FAULTS.register("killed-rank", FaultClass(kill_rank, tries=120, sample=2))
FAULTS.register("killed-controller", FaultClass(partial(kill_controller), tries=80, sample=2))
