"""Ranks that disagree: about options, about sizes of messages, about when and how they end."""

from fault_classes import FAULTS, FaultClass
from fault_classes._originals import TRAIN, put_programs
from fault_classes._try import Try
from hvscale.core.errors import EXIT_RANK_FAILED

# Rank 1 does something else than rank 0, which waits for it. It does not call MPI_Finalize, because
# it would wait there for rank 0, under any launcher.
PROGRAM = """
import os, sys, time
import numpy as np
from mpi4py import MPI
world, how = MPI.COMM_WORLD, sys.argv[1]
other = world.rank == 1
for _ in range(int(sys.argv[2])):
    world.allreduce(1)
if how == "counts":
    world.Allreduce(np.ones(100 if other else 200_000), np.ones(100 if other else 200_000))
    world.Bcast(np.ones(10 if other else 1000), 1 - world.rank)
elif other and how.startswith("exits"):
    os._exit(int(how.removeprefix("exits with ")))
elif other and how == "aborts":
    world.Abort(5)
if how != "counts":
    world.allreduce(1)
"""
WAYS = ("counts", "exits with 0", "exits with 1", "exits with 255", "aborts")
DIFFERENT = ("--batch-size $((2 + R))", "--seed $R", "--optimizer $([ $R = 1 ] && echo sgd || echo adam)")


def programs(one: Try) -> None:
    """Rank 1 of a program leaves, aborts or sends another size: the job ends."""
    (one.folder / "disagree.py").write_text(PROGRAM)
    how, calls = one.random.choice(WAYS), one.random.randrange(50)
    one.disturbance = f"rank 1 {how} after {calls} calls"
    answer = one.run(
        *("profile" if one.random.random() < 0.5 else "launch", "-np", 2, "--run", "job", "--"),
        *("python", "disagree.py", how, calls),
        statuses=(EXIT_RANK_FAILED,) if how != "counts" else (0, EXIT_RANK_FAILED),
        forked=False,
    )
    # Open MPI ends rank 0 because rank 1 left without MPI_Finalize; the launcher's lines say so.
    named = "rank 1" in answer.stderr or (how == "exits with 0" and "finalize" in answer.stderr)
    one.require(how == "counts" or named, f"the error does not name rank 1: {answer.stderr}")
    one.check_no_processes()


def trainings(one: Try) -> None:
    """The ranks of a training have different options: it fails before its first step."""
    put_programs(one.folder, one.original)
    options = one.random.choice(DIFFERENT)
    one.disturbance = f"hvscale train with {options}"
    train = " ".join(map(str, ("hvscale", "train", "small_net:net", *TRAIN, "--steps", 5)))
    script = f"R=$OMPI_COMM_WORLD_RANK; exec {train} {options}"
    one.run("launch", "-np", 2, "--run", "job", "--", "sh", "-c", script, statuses=(EXIT_RANK_FAILED,), forked=False)
    one.check_no_processes()
    steps = one.folder / "job/steps.jsonl"
    one.require(not steps.exists() or not steps.read_text(), "steps were made")


FAULTS.register("disagreeing-programs", FaultClass(programs, tries=40, sample=1))
FAULTS.register("disagreeing-trainings", FaultClass(trainings, tries=6, sample=0))
