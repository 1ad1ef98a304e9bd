"""Training killed at a random moment, in a third of the tries while it writes a checkpoint."""

from contextlib import suppress

import psutil

from fault_classes import FAULTS, FaultClass
from fault_classes._originals import LARGE_STEPS, STEPS, TRAIN_LARGE, TRAIN_SMALL, put_programs
from fault_classes._try import Try, has_lines, ranks_of, wait_for
from fault_classes.mutated_training import check_training, same_model
from hvscale.core.errors import EXIT_DONE, EXIT_RANK_FAILED

TWO_RANKS = ("launch", "-np", 2, "--run")
KEPT = ("--checkpoint-dir", "kept", "--resume", "auto")
LONGEST_PAUSE = 0.2


def kill_single(one: Try) -> None:
    """Kill a single process and resume it: the losses equal those of an uninterrupted training."""
    put_programs(one.folder, one.original)
    while_writing = one.number % 3 == 0
    kind, words, steps = ("large", TRAIN_LARGE, LARGE_STEPS) if while_writing else ("small", TRAIN_SMALL, STEPS)
    whole = one.original("large-trained" if while_writing else "trained")
    run = one.folder / "job"
    lines = one.random.randrange(steps)
    running = one.start(*words, "--run", "job", "--resume", "auto", forked=True)

    def temporary() -> bool:
        """Checkpoints are written under a temporary name that starts with a dot."""
        return any(run.glob("checkpoints/.*"))

    wait_for(lambda: has_lines(run / "steps.jsonl", lines), running)
    if while_writing:
        wait_for(temporary, running)
    one.pause(0.03 if while_writing else LONGEST_PAUSE)
    writing = temporary()
    running.kill()
    running.end()
    one.disturbance = f"{kind}, after {lines} steps{', while a checkpoint was written' if writing else ''}"
    one.run(*words, "--run", "job", "--resume", "auto", statuses=(EXIT_DONE,))
    check_training(one, run, whole, kind)
    one.require(not temporary(), "a temporary checkpoint was left")


def kill_rank(one: Try) -> None:
    """Kill one of two ranks; the resumed training ends, with all steps."""
    put_programs(one.folder, one.original)
    train = ("hvscale", *TRAIN_SMALL, *KEPT)
    running = one.start(*TWO_RANKS, "first", "--", *train)
    victim, lines = one.random.randrange(2), one.random.randrange(STEPS - 10)
    file = one.folder / "first/steps.jsonl"
    wait_for(lambda: has_lines(file, lines), running)
    one.pause(LONGEST_PAUSE)
    ranks = ranks_of(one.folder)
    with suppress(psutil.Error, KeyError):
        ranks[victim].kill()
    one.disturbance = f"rank {victim} of 2, after {lines} steps"
    first = one.judge(running, (EXIT_DONE, EXIT_RANK_FAILED))
    one.check_no_processes()
    if first.status == EXIT_DONE:
        return
    one.run(*TWO_RANKS, "second", "--", *train, statuses=(EXIT_DONE,), forked=False)
    one.run(*TWO_RANKS, "whole", "--", "hvscale", *TRAIN_SMALL, statuses=(EXIT_DONE,), forked=False)
    same_model(one, one.folder / "second", one.folder / "whole")


FAULTS.register("killed-training", FaultClass(kill_single, tries=90, sample=3))
FAULTS.register("killed-training-rank", FaultClass(kill_rank, tries=6, sample=0))
