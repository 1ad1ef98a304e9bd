"""SIGSTOP for longer than the stall time-out, in a training and in the recording of a program."""

import json
import signal
from contextlib import suppress

import psutil

from fault_classes import FAULTS, FaultClass
from fault_classes._originals import TRAIN, put_programs
from fault_classes._try import Try, has_lines, ranks_of, wait_for
from hvscale.core.errors import EXIT_RANK_FAILED

STALL_SECONDS = 4


def attempt(one: Try) -> None:
    """Stop a rank for good: the others end the job after the time-out."""
    put_programs(one.folder, one.original)
    steps = ("--steps", 10**6, "--checkpoint-every", 0, "--stall-timeout", STALL_SECONDS)
    running = one.start("launch", "-np", 2, "--run", "job", "--", "hvscale", "train", "small_net:net", *TRAIN, *steps)
    lines, victim = one.random.randrange(1, 60), one.random.randrange(2)
    file = one.folder / "job/steps.jsonl"
    wait_for(lambda: has_lines(file, lines), running)
    one.pause(0.2)
    one.disturbance = f"rank {victim} stopped after {lines} steps"
    ranks_of(one.folder)[victim].suspend()
    one.judge(running, (EXIT_RANK_FAILED,))
    one.check_no_processes()
    record = json.loads((one.folder / "job/run.json").read_text())
    one.require(record["state"] == "failed", f"run.json has the state {record['state']}")


def pause_controller(one: Try) -> None:
    """Stop and continue the controller or a rank of a profiled program: the job then succeeds."""
    one.copy("steady")
    running = one.start("profile", "-np", 2, "--run", "job", "--", "./steady", 1, -1)
    one.pause(1.5)
    victim = one.random.choice(["the controller", "a rank"])
    one.disturbance = f"{victim} stopped for a time"
    pids = [running.pid] if victim == "the controller" else [rank.pid for rank in ranks_of(one.folder).values()][:1]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            with suppress(psutil.Error):
                psutil.Process(pid).send_signal(number)
        one.pause(2.0)
    one.judge(running, (0,))
    one.check_no_processes()


FAULTS.register("stopped-training-rank", FaultClass(attempt, tries=8, sample=0))
FAULTS.register("stopped-for-a-time", FaultClass(pause_controller, tries=40, sample=1))
