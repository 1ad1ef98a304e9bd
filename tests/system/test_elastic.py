"""Elastic training under real `horovodrun`: killed ranks, added and removed hosts, and samples
used.

Horovod removes a host with all its ranks when one dies, so this machine appears as several hosts
under several names.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_SECONDS, Run, run_json, wait_until
from tests.system.elastic import (
    COMMIT_EVERY,
    FIRST,
    FOURTH,
    SAMPLES,
    SECOND,
    THIRD,
    TRAIN,
    Job,
    check_samples,
    elastic_job,
    write_images,
)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Any]:
    """`with job("--blacklist-cooldown-range", 1, 2) as running:` starts two ranks on two hosts."""
    return partial(elastic_job, tmp_path)


def test_job_continues_without_a_killed_rank_until_it_is_replaced(job: Callable[..., Any]) -> None:
    """First rank 0 is killed, later rank 1."""
    fewer = "np is 1, it was 2: a step takes 4 images, not 8; the learning rate is not scaled by ranks"
    more = "np is 2, it was 1: a step takes 8 images, not 4"
    continued = []
    with job("--blacklist-cooldown-range", 1, 2) as running:
        for rank in (0, 1):
            said = [running.log().count(text) for text in (fewer, more)]
            running.wait_for_ranks(2, more=COMMIT_EVERY + 2)
            os.kill(running.pid(rank), signal.SIGKILL)
            running.wait_for_ranks(1)
            continued.append(time.time())
            running.wait_for_ranks(2)
            running.wait_for_epochs(1)
            assert all(running.log().count(text) > times for text, times in zip((fewer, more), said, strict=True))
        running.stop()
        check_samples(running, COMMIT_EVERY, continued[:1])
        record = run_json(running.folder / "job")
        assert (record["state"], record["exit_status"], record["np"]) == ("interrupted", 75, 2)
        last_step = running.steps()[-1]["step"]
        assert (running.folder / f"job/checkpoints/step-{last_step:09d}.ckpt").is_file()


def test_adding_and_removing_hosts_loses_no_step(job: Callable[..., Any]) -> None:
    """Rank 0's host is removed: another rank then writes the run folder."""
    with job() as running:
        running.wait_for_ranks(2)
        running.hosts(FIRST, SECOND, THIRD)
        running.wait_for_ranks(3)
        running.hosts(*{FIRST, SECOND, THIRD} - {running.host(0)})
        running.wait_for_ranks(2)
        running.wait_for_epochs(1)
        running.stop()
        assert "this host was removed from the job" in running.log()
        check_samples(running)


def wait_for_regrouping(running: Job, *hosts: str) -> None:
    """Set the hosts, and wait until the ranks have regrouped and made three more steps."""
    regrouped = running.log().count("the ranks regroup")
    running.hosts(*hosts)
    wait_until(lambda: running.log().count("the ranks regroup") > regrouped)
    before = len(running.steps())
    wait_until(lambda: len(running.steps()) >= before + 3)


def test_new_rank_that_cannot_start_does_not_end_the_others(job: Callable[..., Any]) -> None:
    """The rank on one new host ends at once, and that on another one finds no data."""
    script = f'''case "$HOROVOD_HOSTNAME" in
        {THIRD}) exit 1 ;;
        {FOURTH}) set -- "$@" --data nowhere ;;
    esac; exec "$0" "$@"'''
    with job(train=("sh", "-c", script, *TRAIN)) as running:
        running.wait_for_ranks(2)
        for added in (THIRD, FOURTH):
            wait_for_regrouping(running, FIRST, SECOND, added)
            running.wait_for_ranks(2)
            assert ("--data nowhere: no such folder" in running.log()) == (added == FOURTH)
        running.stop()
        check_samples(running)


def test_another_number_of_ranks_resumes_in_the_same_epoch_with_a_warning(hvscale: Run, tmp_path: Path) -> None:
    """Without elastic training: one rank uses 80 of 120 samples, then two ranks the other 40."""
    write_images(tmp_path)
    train = (*TRAIN[:-4], "--checkpoint-every", 20, "--checkpoint-dir", "kept", "--resume", "auto")
    assert hvscale(*train[1:], "--steps", 20).returncode == 0
    words = (*train, "--steps", 45, "--learning-rate", "2e-4")
    done = hvscale("launch", "-np", 2, "--run", "rest", "--", *words)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count("the checkpoint is of 1 ranks and this run has 2: a step now takes 8 images") == 1
    assert output.count("--learning-rate was None and is now 0.0002") == 1
    seen = [json.loads(line) for file in (tmp_path / "seen").iterdir() for line in file.read_text().splitlines()]
    by_epoch = [
        [sample for line in seen if first <= line["step"] <= last for sample in line["samples"]]
        for first, last in ((1, 25), (26, 40))
    ]
    assert [sorted(samples) for samples in by_epoch] == [list(range(SAMPLES))] * 2
    lines = [json.loads(line) for line in (tmp_path / "job/steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 46))
    assert [line["step"] for line in lines if line["epoch_loss"]] == [25, 40]


TUNED = (*TRAIN, "--autotune", "--autotune-steps", 30)
SAID = "hvscale: autotune: "
RESULTS = ("result-np2.json", "result.json")


def test_an_elastic_job_is_tuned_again_for_another_number_of_ranks_and_all_ranks_handle_nan_losses(
    job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The losses are NaN in one step, and later in three, of the larger number of ranks."""
    monkeypatch.setenv("HVSCALE_SETTINGS_DIR", str(tmp_path / "memory"))
    with job(train=TUNED) as running:
        running.wait_for_ranks(2)
        wait_until(lambda: running.log().count(SAID) == 1)
        running.hosts(FIRST, SECOND, THIRD)
        running.wait_for_ranks(3)
        wait_until(lambda: running.log().count(SAID) == 2)

        (running.folder / "nan-once-1").touch()
        wait_until(lambda: any(step["skipped"] for step in running.steps()))
        before = len(running.steps())
        wait_until(lambda: len(running.steps()) > before + 4)
        assert sum(step["skipped"] for step in running.steps()) == 1
        (running.folder / "nan-2").touch()
        assert running.process.wait(HANG_SECONDS) != 0
        last = running.steps()[-3:]
        assert [step["skipped"] for step in last] == [True] * 3
        last_step = last[-1]["step"]
        assert f"the loss or a gradient is not finite in 3 steps in a row, up to step {last_step}" in running.log()
        assert running.log().count("the ranks regroup") == 1
        assert run_json(running.folder / "job")["state"] == "failed"

        results = [json.loads((running.folder / f"job/autotune/{name}").read_text()) for name in RESULTS]
        assert [one["fingerprint"]["np"] for one in results] == [2, 3]
        assert all(one["state"] in ("tuned", "defaults") and one["steps"] >= 12 for one in results)
        remembered = [json.loads(path.read_text()) for path in (tmp_path / "memory").glob("*.json")]
        proven = sorted(one["fingerprint"]["np"] for one in results if one["state"] == "tuned")
        assert sorted(one["fingerprint"]["np"] for one in remembered) == proven


def test_a_rank_that_is_killed_while_an_elastic_job_is_tuned(job: Callable[..., Any]) -> None:
    """The others go on with the defaults, and begin to tune again."""
    with job("--blacklist-cooldown-range", 1, 2, train=(*TRAIN, "--autotune", "--autotune-steps", 1000)) as running:
        running.wait_for_ranks(2, more=15)
        assert SAID not in running.log()
        os.kill(running.pid(1), signal.SIGKILL)
        running.wait_for_ranks(1)
        running.wait_for_ranks(2, more=15)
        running.stop()
        assert "the ranks changed, or the program ended, after" in running.log()
        check_samples(running, COMMIT_EVERY)
