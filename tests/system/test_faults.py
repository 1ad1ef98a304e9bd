"""A small sample of the fault campaign; `make faults` runs all of it."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conftest import HANG_SECONDS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Classes of faults that hvscale would not survive: its answer is wrong, or it leaves a process.
LOSING_CLASSES = """
import sys
sys.path[:0] = sys.argv.pop(1), sys.argv.pop(1)
from fault_classes import FAULTS, FaultClass
import faults

def wrong_answer(one):
    one.disturbance = "a request that is wrong"
    one.run("launch", "-np", 0, "--", "true", statuses=(0,), forked=False)

def hangs(one):
    one.judge(one.start("launch", "--mpi", "gloo", "--run", "job", "--", "sleep", 1200), seconds=4)

FAULTS.register("wrong-answer", FaultClass(wrong_answer, tries=2, sample=0))
FAULTS.register("hangs", FaultClass(hangs, tries=1, sample=0))
sys.exit(faults.main())
"""


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_no_try_of_the_sample_is_lost(tmp_path: Path) -> None:
    words = [sys.executable, str(BENCHMARKS / "faults.py"), "--folder", str(tmp_path), "--sample", "--patience", "3"]
    words += ["--jobs", "3"]  # more tries than cores, because they wait for each other's start and end
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(tmp_path)
    classes = Counter(line["name"] for line in found)
    assert classes["mutated-run"] >= 10
    assert classes.keys() >= {"mutated-training", "killed-training", "killed-rank", "killed-controller"}
    # Faults must reach the commands: some report an error, and some still succeed.
    assert {0, 2, 3} <= {status for line in found for status in line["answers"]}
    assert list((tmp_path / "tries").iterdir()) == []
    # The same command resumes: nothing is left to do.
    again = subprocess.run(words, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert again.returncode == 0, again.stderr
    assert results(tmp_path) == found


def test_lost_tries_are_counted_and_named(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LOSING_CLASSES, str(BENCHMARKS), str(BENCHMARKS.parent)]
    options = ["--folder", str(tmp_path), "--only", "wrong-answer,hangs", "--seed", "7"]
    done = subprocess.run([*words, *options], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1, done.stderr
    assert "LOST --class wrong-answer --seed 7 --try 1 (a request that is wrong): `hvscale launch -np 0" in done.stdout
    assert "did not end within 4 s" in done.stdout
    assert [bool(line["lost"]) for line in results(tmp_path)] == [True] * 3
    other = subprocess.run([*words, *options[:-1], "8"], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (other.returncode, other.stderr.count("give --seed 7")) == (2, 1)
