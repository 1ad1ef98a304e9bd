"""An elastic job under horovodrun, one of whose ranks is killed."""

import os
import signal
import sysconfig
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hvscale.bench.gpu_check.commands import CommandFailedError
from hvscale.bench.gpu_check.step import RANK_SIDE, StepContext, step
from hvscale.bench.gpu_check.steps._training import SIDE, make_images, steps_of
from hvscale.launch.supervision import processes

CLAIM = "an elastic job continues after one of its two ranks was killed"
BATCH, COMMIT_EVERY, STEPS = 8, 5, 150
STEPS_BEFORE = 15
POLL_SECONDS = 0.1
# Horovod removes a host with all its ranks, so this machine appears under two names.
HOSTS = ("localhost", "127.0.0.1")
VICTIM = b"HOROVOD_RANK=1"


@step("elastic", "an elastic job under horovodrun with a rank killed by SIGKILL", order=100, limit_seconds=70)
def elastic(context: StepContext) -> None:
    with context.claim(CLAIM):
        kill_a_rank(context)


def kill_a_rank(context: StepContext) -> None:
    job = context.folder / "job"
    script = context.folder / "discover.sh"
    script.write_text("#!/bin/sh\n" + "".join(f"echo {host}:1\n" for host in HOSTS))
    script.chmod(0o700)
    horovodrun = Path(sysconfig.get_path("scripts")) / "horovodrun"
    hosts = ("-np", 2, "--min-np", 1, "--max-np", 2, "--host-discovery-script", script, "--network-interface", "lo")
    train = [
        *("hvscale", "train", f"{RANK_SIDE}.models:slow", "--data", make_images(context), "--image-size", SIDE),
        *("--batch-size", BATCH, "--commit-every", COMMIT_EVERY, "--steps", STEPS, "--run", job, "--threads", 1),
        *("--precision", "fp32", "--memory-format", "contiguous", "--stall-timeout", 60),
    ]
    killed: list[int] = []
    over = threading.Event()
    killer = threading.Thread(target=kill_when_ready, args=(job, killed, over.is_set), daemon=True)
    killer.start()
    try:
        # horovodrun's own status is 1 whatever became of the job.
        done = context.run(
            "horovodrun",
            [horovodrun, *hosts, *train],
            statuses=(0, 1),
            environment=context.sharing_variables(2),
        )
    finally:
        over.set()
        killer.join()
    if not killed:
        raise CommandFailedError("the job ended before a rank could be killed", done.last_lines)
    judge(context, job, done.last_lines)


def kill_when_ready(job: Path, killed: list[int], is_over: Callable[[], bool]) -> None:
    """Kill rank 1 once both ranks have made STEPS_BEFORE steps."""
    while not is_over() and not killed:
        time.sleep(POLL_SECONDS)
        with suppress(CommandFailedError, ValueError):
            if sum(row["images"] == 2 * BATCH for row in steps_of(job)) < STEPS_BEFORE:
                continue
            for pid in processes.descendants(os.getpid()):
                if VICTIM in processes.environment_of(pid) and is_trainer(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)


def is_trainer(pid: int) -> bool:
    """Whether a process is a rank, not a shell around it."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b"train" in words and b"python" in Path(os.fsdecode(words[0])).name.encode()
    return False


def judge(context: StepContext, job: Path, last_lines: list[str]) -> None:
    rows = steps_of(job)
    alone = [row["step"] for row in rows if row["images"] == BATCH]
    numbers = [row["step"] for row in rows]
    complete = sorted(set(numbers)) == list(range(1, STEPS + 1)) and (job / "result.json").exists()
    context.hold(
        CLAIM,
        complete and bool(alone),
        f"{STEPS} steps; from step {min(alone, default=0)} on with one rank" if alone else "never alone",
        f"{len(set(numbers))} of {STEPS} steps, {len(alone)} of them with one rank; {' / '.join(last_lines[-2:])}",
        steps=len(set(numbers)),
        steps_alone=len(alone),
    )
