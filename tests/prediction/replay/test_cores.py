"""Ranks of a replay share a machine's cores evenly if there are fewer cores than ranks."""

import os
import subprocess
import sys

import pytest

# Prints the cores of each thread, after one that was there before.
PROGRAM = """
import os, sys, threading
from hvscale.prediction.replay.rank import spread_over_cores
end = threading.Event()
threading.Thread(target=end.wait).start()
spread_over_cores(*map(int, sys.argv[1:]))
print(*{tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in os.listdir("/proc/self/task")}, sep="\\n")
end.set()
"""


def cores_of_threads(number: int, ranks: int, allowed: set[int]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(number), str(ranks)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("more", [1, 3])
def test_each_rank_keeps_to_one_core_in_turn(more: int) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    for number in range(len(cores) + more):
        found = cores_of_threads(number, len(cores) + more, set(cores))
        assert found == [f"({cores[number % len(cores)]},)"]


def test_ranks_that_have_a_core_each_are_not_bound() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert cores_of_threads(0, len(cores), set(cores)) == [str(tuple(cores))]
