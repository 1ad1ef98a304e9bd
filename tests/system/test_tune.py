"""`hvscale tune` with real ranks: search, proof, failing trials, interruption and resuming."""

import csv
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_SECONDS, PROGRAMS, YIELDS, Run, processes_below, requested_knobs, run_json, wait_until

# A job whose speed and failures depend on Open MPI's all-reduce algorithm. The arguments give the
# behaviour of each algorithm, for example `ring=fast`. If there is a file `held`, the jobs from the
# number in it wait, so that the search stands still.
STEPS = """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
from hvscale import profiling

world = MPI.COMM_WORLD
names = {"": "default", "4": "ring", "5": "segmented_ring", "3": "recursive_doubling", "6": "reduce_scatter_allgather"}
algorithm = names.get(os.environ.get("OMPI_MCA_coll_tuned_allreduce_algorithm", ""), "another")
mood = dict(word.split("=") for word in sys.argv[1:]).get(algorithm, "usual")
own, total = np.full(1 << 15, 1.0 + world.rank, np.float32), np.empty(1 << 15, np.float32)
run = Path(os.environ["HVSCALE_RUN"])
steps = (run / "steps.jsonl").open("w", buffering=1) if world.rank == 0 else None
held = Path("held")
while held.exists() and int(run.name.rpartition("-")[2]) >= int(held.read_text()):
    time.sleep(0.1)
began = time.monotonic()
for step in range(100000):
    profiling.step()  # step boundaries are exact even on a busy machine with short steps
    time.sleep({"usual": 0.04, "slow": 0.1}.get(mood, 0.005))
    world.Allreduce(own, total)
    if step == 4 and mood == "crash" and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 4 and mood == "hang":
        time.sleep(1200)
    loss = float(total.mean()) / (step + 1) * (2 if mood == "wrong" else 1)
    now = time.monotonic()
    if steps is not None:
        steps.write(json.dumps({"images": 32, "seconds": now - began, "loss": loss}) + "\\n")
    began = now
"""
ALGORITHMS = {"ring", "segmented_ring", "recursive_doubling", "reduce_scatter_allgather", "reduce_broadcast"}

# Corrupts sums of gradients on rank 1 while Horovod's cycle time is 10 ms.
WRONG_SUMS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int (*allreduce)(const void *, void *, int, void *, void *, void *);

int MPI_Allreduce(const void *send, void *receive, int count, void *type, void *operation, void *communicator)
{
    void *next = dlsym(RTLD_NEXT, "MPI_Allreduce");
    allreduce profiled;
    memcpy(&profiled, &next, sizeof next);
    int status = profiled(send, receive, count, type, operation, communicator);
    const char *cycle = getenv("HOROVOD_CYCLE_TIME"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (cycle != NULL && atof(cycle) == 10 && atoi(rank) == 1 && count > 1000)
        ((float *)receive)[count / 2] += 1;
    return status;
}
"""
# Preloads it before the libraries that hvscale preloads.
SITE = """
import os, sys
library = os.path.join(os.path.dirname(__file__), "wrong_sums.so")
loaded = os.environ.get("LD_PRELOAD", "")
if "HVSCALE_RUN" in os.environ and library not in loaded:
    os.environ["LD_PRELOAD"] = library + ":" + loaded
    os.execv(sys.executable, sys.orig_argv)
"""
TRAIN = (
    *("hvscale", "train", "edsr-baseline", "--n-resblocks", "1", "--n-feats", "8", "--patch-size", "16"),
    *("--precision", "fp32", "--memory-format", "contiguous", "--threads", "1", "--steps", "5"),
)


def tune_json(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "tune.json").read_text())
    return document


def trials_in(folder: Path) -> int:
    return len(tune_json(folder)["trials"]) if (folder / "tune.json").exists() else 0


def start(tmp_path: Path, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [PROGRAMS / "hvscale", "tune", *map(str, arguments)], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )


def trials_by_algorithm(document: dict[str, Any]) -> dict[str, Any]:
    """Return the trials by all-reduce algorithm."""
    return {trial["settings"].get("allreduce_algorithm", "default"): trial for trial in document["trials"]}


def test_a_faster_setting_is_found_and_proven_although_others_fail(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    behaviours = (
        "ring=fast",
        "another=fast",
        "recursive_doubling=crash",
        "segmented_ring=wrong",
        "reduce_scatter_allgather=hang",
    )
    done = hvscale(
        *("tune", "-np", "2", "--run", "study", "--knobs", "allreduce_algorithm", "--trial-seconds", "0.5", "--json"),
        *("--csv", "trials.csv", *YIELDS, "--", "python", program(STEPS), *behaviours),
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "study"
    document = json.loads(done.stdout)
    assert document == tune_json(folder)
    assert (document["schema"], document["state"], document["np"]) == ("hvscale/tune/2", "finished", 2)
    assert (document["unit"], document["library"]["flavour"]) == ("images/s", "openmpi")
    assert document["measured_by"] == "the steps that the command writes into steps.jsonl"
    first = document["trials"][0]
    assert (first["settings"], first["state"]) == ({}, "measured")
    trials = trials_by_algorithm(document)
    assert set(trials) == {"default", *ALGORITHMS}
    assert (trials["recursive_doubling"]["state"], trials["recursive_doubling"]["throughput"] is None) == (
        "crashed",
        False,
    )
    assert "rank 1" in trials["recursive_doubling"]["problem"]
    assert "SIGKILL" in trials["recursive_doubling"]["problem"]
    assert trials["reduce_scatter_allgather"]["state"] == "hung"
    assert "after 4 steps" in trials["reduce_scatter_allgather"]["problem"]
    assert trials["segmented_ring"]["state"] == "wrong sums"
    assert trials["segmented_ring"]["problem"] == "the loss of step 1 is 6.0, but 3.0 with the defaults"
    # The two fastest may be measured again, to the end.
    for fast in ("ring", "reduce_broadcast"):
        trials_of_setting = [
            trial for trial in document["trials"] if trial["settings"] == {"allreduce_algorithm": fast}
        ]
        assert len(trials_of_setting) <= 2
        assert trials_of_setting[-1]["state"] == "measured" or len(trials_of_setting) == 1
    # The settings and states of the trials agree with their runs.
    for trial in document["trials"]:
        record = run_json(folder / trial["run"])
        assert requested_knobs(record) == trial["settings"]
        assert record["state"] == {"crashed": "failed"}.get(trial["state"], "stopped")

    assert document["winner"]["allreduce_algorithm"] in ("ring", "reduce_broadcast")
    proof = document["proof"]
    assert (proof["accepted"], len(proof["pairs"]), proof["settings"]) == (True, 7, document["winner"])
    assert 1 < proof["gain"]["low"] <= proof["gain"]["mean"] <= proof["gain"]["high"]
    records = {
        name: run_json(folder / name) for pair in proof["pairs"] for name in (pair["default_run"], pair["tuned_run"])
    }
    assert len(records) == 14
    settings_in_order = [
        requested_knobs(record) for record in sorted(records.values(), key=lambda record: str(record["started_at"]))
    ]
    for pair in range(7):
        assert sorted(map(len, settings_in_order[2 * pair : 2 * pair + 2])) == [0, 1]
    assert document["warnings"] == []
    assert document["profile"]["run_after"] == str(folder / proof["pairs"][-1]["tuned_run"])
    reasons = {choice["knob"]: choice["reason"] for choice in document["space"] if not choice["values"]}
    assert reasons["cycle_time"] == "not among --knobs"
    with (tmp_path / "trials.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert [row["state"] for row in rows] == [trial["state"] for trial in document["trials"]]
    assert "allreduce_algorithm=ring" in [row["settings"] for row in rows]
    assert processes_below(folder) == []


def test_an_interrupted_search_is_resumed_and_may_keep_the_defaults(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script = program(STEPS)
    slower = ("python", script, "default=fast", *(f"{name}=slow" for name in ALGORITHMS), "another=slow")
    search = ("-np", "2", "--run", "study", "--knobs", "allreduce_algorithm", "--trial-seconds", "0.5")
    folder = tmp_path / "study"

    held = tmp_path / "held"
    held.write_text("2")
    first = start(tmp_path, *search, "--trials", "5", "--", *slower)
    wait_until(lambda: trials_in(folder) == 1)
    second = hvscale("tune", *search, "--", *slower)
    assert second.returncode == 2
    assert f"{folder} is in use by process {first.pid} on " in second.stderr
    first.send_signal(signal.SIGINT)
    _, stderr = first.communicate(timeout=HANG_SECONDS)
    assert first.returncode == 130, stderr
    assert tune_json(folder)["state"] == "interrupted"
    assert processes_below(folder) == []

    next_start = len(list(folder.glob("start-*"))) + 1
    held.write_text(str(next_start + 2))
    killed = start(tmp_path, *search, "--trials", "5", "--", *slower)
    wait_until(lambda: trials_in(folder) == 3)
    killed.kill()
    killed.communicate()
    held.unlink()
    wait_until(lambda: processes_below(folder) == [])
    before = tune_json(folder)["trials"]

    other_study = hvscale("tune", *search, "--fix", "cycle_time=5", "--", *slower)
    assert other_study.returncode == 2
    assert "holds another study: its fixed differs" in other_study.stderr
    done = hvscale("tune", *search, "--trials", "5", "--", *slower)
    assert done.returncode == 0, done.stderr
    document = tune_json(folder)
    assert document["trials"][: len(before)] == before
    settings = [trial["settings"] for trial in document["trials"]]
    # Each start measures the defaults first, because the machine may have changed.
    assert [index for index, one in enumerate(settings) if not one] == [0, 1, len(before)]
    others = [str(one) for one in settings if one]
    assert len(set(others)) == len(others) == 2
    assert (document["state"], document["winner"], document["proof"]) == ("finished", {}, None)
    assert "keep the defaults: no trial was faster" in done.stdout

    # A study is finished only when its outputs are written. If that fails, the same command writes
    # them later.
    (folder / "guide.html").unlink()
    (folder / "guide.html").mkdir()
    done = hvscale("tune", *search, "--trials", "5", "--", *slower)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert tune_json(folder)["state"] == "failed"
    (folder / "guide.html").rmdir()
    (folder / "study.db").write_bytes(b"no database" * 1000)
    done = hvscale("tune", *search, "--trials", "5", "--", *slower)
    assert done.returncode == 2, done.stderr
    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith(f"hvscale: {folder}/study.db cannot be used (")
    assert "file is not a database" in last_line
    assert "Traceback" not in done.stderr
    (folder / "study.db").unlink()
    done = hvscale("tune", *search, "--trials", "5", "--", *slower)
    assert done.returncode == 0, done.stderr
    assert (folder / "guide.html").is_file()
    after = tune_json(folder)
    assert (after["state"], after["trials"]) == ("finished", document["trials"])


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (
            ("sleep", "1200"),
            4,
            "no step of the command was seen (no step in 2 s; looked for: steps.jsonl, marked steps",
        ),
        (("true",), 4, "no step of the command was seen (the command ended; looked for: steps.jsonl"),
        (("false",), 3, "with the defaults rank"),
    ],
)
def test_a_command_that_cannot_be_measured_is_reported(
    hvscale: Run, tmp_path: Path, command: tuple[str, ...], status: int, message: str
) -> None:
    done = hvscale("tune", "-np", "2", "--run", "study", "--first-step-timeout", "2", "--", *command)
    assert done.returncode == status
    assert message in done.stderr
    assert tune_json(tmp_path / "study")["state"] == "failed"
    assert processes_below(tmp_path / "study") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-np", "1"), "-np 1: a single rank sends no messages"),
        (("-np", "2", "--knobs", "speed"), "--knobs speed: unknown knob"),
        (("-np", "2", "--fix", "cycle_time"), "--fix cycle_time: the value is missing"),
        (("-np", "2", "--fix", "nccl_protocol=fast"), "--fix nccl_protocol=fast: "),
        (("-np", "2", "--knobs", "cycle_time", "--fix", "cycle_time=5"), "cycle_time is in --knobs and --fix"),
        (("-np", "2", "--set", "cycle_time=5"), "--fix KNOB=VALUE sets a knob in every trial"),
        (("-np", "2", "--pairs", "3"), "--pairs 3: a proof needs at least 7 pairs"),
        (("-np", "2", "--minutes", "0"), "--minutes 0: give a number from 0.001 to 10000000"),
        (("-np", "2", "--metric", "speed"), "put the number into a group"),
    ],
)
def test_an_invalid_request_starts_nothing(
    hvscale: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = hvscale("tune", *arguments, "--run", "study", "--", "true")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "study").exists()


# Does not report its steps.
REPORTS_NO_STEPS = """
import sys, time
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
own, total = np.ones(1 << 14, np.float32), np.empty(1 << 14, np.float32)
for step in range(60):
    time.sleep(0.05)
    for _ in range(3):
        world.Allreduce(own, total)
    if world.rank == 0 and step % 10 == 9:
        print("speed", 4.5, flush=True)
"""


@pytest.mark.parametrize(
    ("metric", "unit", "measured_by"),
    [
        ((), "steps/s", "the period of its collectives"),
        (("--metric", "speed ([0-9.]+)"), None, "what --metric matches"),
    ],
)
def test_an_unmodified_command_is_measured(
    hvscale: Run,
    program: Callable[[str], Path],
    tmp_path: Path,
    metric: tuple[str, ...],
    unit: str | None,
    measured_by: str,
) -> None:
    done = hvscale(
        "tune", "-np", "2", "--run", "study", "--trials", "1", *metric, "--", "python", program(REPORTS_NO_STEPS)
    )
    assert done.returncode == 0, done.stderr
    document = tune_json(tmp_path / "study")
    assert (document["unit"], document["measured_by"]) == (unit, measured_by)
    [trial] = document["trials"]
    throughput = trial["throughput"]["mean"]
    if unit is None:
        assert throughput == 4.5
    else:
        assert 0 < throughput < 1.1 / 0.05  # each step sleeps for 0.05 s
    assert document["winner"] == {}


def test_hvscale_train_changes_horovod_knobs_without_a_restart_and_checks_sums(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "wrong_sums.c").write_text(WRONG_SUMS)
    (site / "sitecustomize.py").write_text(SITE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "wrong_sums.so", "wrong_sums.c", "-ldl"], cwd=site, check=True)
    folder = tmp_path / "study"
    search = start(
        tmp_path,
        *("-np", "2", "--run", "study", "--knobs", "cycle_time", "--trials", "7", "--trial-seconds", "0.5"),
        *("--env", f"PYTHONPATH={site}", "--", *TRAIN),
    )
    try:
        wait_until(lambda: trials_in(folder) == 7 or search.poll() is not None)
    finally:
        search.send_signal(signal.SIGINT)  # does not wait for a proof
        _, stderr = search.communicate(timeout=HANG_SECONDS)
    document = tune_json(folder)
    # If no setting was faster, the search may have ended before the signal.
    assert (search.returncode, document["state"]) in ((130, "interrupted"), (0, "finished")), stderr
    assert document["unit"] == "images/s"
    trials = document["trials"]
    assert [trial["start"] for trial in trials] == sorted(trial["start"] for trial in trials)
    assert len({trial["start"] for trial in trials}) < len(trials)
    states = {trial["settings"].get("cycle_time"): trial for trial in trials}
    assert len(states) == 7
    assert states.pop("10")["state"] == "wrong sums"
    assert {trial["state"] for trial in states.values()} <= {"measured", "stopped early"}
    # The search runs more steps than --steps, and ends the training itself.
    assert sum(trial["steps"] for trial in trials if trial["start"] == 1) > 5
    assert not list(folder.glob("start-*/model.pt"))
    assert processes_below(folder) == []


REINITIALISE = """
import os, time
import horovod.torch as hvd, torch
from hvscale.launch.rank_side.persistent_mpi import init_mpi
from hvscale.trainer.ranks import loaded_mpi

init_mpi(loaded_mpi())
for cycle in ("1", "400", "1"):
    os.environ["HOROVOD_CYCLE_TIME"] = cycle
    hvd.init()
    began = time.monotonic()
    for number in range(3):
        assert float(hvd.allreduce(torch.ones(1), name="one", op=hvd.Sum)) == hvd.size()
    print("cycle", cycle, "seconds", time.monotonic() - began, flush=True)
    hvd.shutdown()
"""


@pytest.mark.parametrize("verb", ["launch", "profile"])
def test_horovod_can_be_initialised_again_with_other_knobs(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, verb: str
) -> None:
    done = hvscale(verb, "-np", "2", "--run", "run", "--", "python", program(REINITIALISE))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (tmp_path / "run" / "logs" / "rank-00000.log").read_text().splitlines()]
    seconds = {index: float(words[3]) for index, words in enumerate(words for words in lines if words[0] == "cycle")}
    assert seconds[1] > 0.8  # each of the three messages waits for a cycle; at least two full cycles pass
