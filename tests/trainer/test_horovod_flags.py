"""Horovod's options on two real ranks: steps equal the same steps computed without Horovod."""

import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvscale.core.errors import RequestError
from hvscale.trainer import TrainConfig
from tests.conftest import Run
from tests.trainer.conftest import PROGRAMS, Ranks, make_photos, run_on_two_ranks

# Each entry is one start of the ranks: the options to test, each with its tolerance relative to the
# change of the parameters.
STARTS: list[list[tuple[float, dict[str, Any]]]] = [
    [
        (1e-3, {"batches_per_allreduce": 3}),
        (1e-3, {"scale_learning_rate": True, "batches_per_allreduce": 2}),
        (1e-3, {"gradient_predivide_factor": 2.0}),
        (1e-3, {"clip_norm": 0.05}),
        (2e-2, {"fp16_allreduce": True}),
        (2e-2, {"fp16_allreduce": True, "gradient_predivide_factor": 2.0}),
        (2e-2, {"bf16_allreduce": True}),
        (2e-2, {"bf16_allreduce": True, "batches_per_allreduce": 2, "clip_norm": 0.1}),
        (1e-3, {"sync_batch_norm": True}),
        (1e-3, {"sync_batch_norm": True, "batches_per_allreduce": 2}),
        (1e-3, {"allreduce_groups": 2}),
        (1e-3, {"allreduce_groups": 2, "batches_per_allreduce": 2, "clip_norm": 0.1}),
    ],
    [(1e-3, {"use_adasum": True, "steps": 1})],  # separate: Horovod remembers each tensor's operation by its name
]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], subprocess.CompletedProcess[str]]:
    """`started(1)`: two ranks have run entry 1 of STARTS and printed a JSON line per option set."""

    @functools.cache
    def start(number: int) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("flags")
        option_sets = [{"steps": 4, "learning_rate": 0.01, **options} for _, options in STARTS[number]]
        return run_on_two_ranks(folder, "flags.py", json.dumps(option_sets), make_photos(folder / "photos"))

    return start


@pytest.mark.parametrize(
    ("start", "index"),
    [
        pytest.param(start, index, id="+".join(options))
        for start, option_sets in enumerate(STARTS)
        for index, (_, options) in enumerate(option_sets)
    ],
)
def test_steps_equal_the_reference(
    started: Callable[[int], subprocess.CompletedProcess[str]], start: int, index: int
) -> None:
    done, (tolerance, _) = started(start), STARTS[start][index]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) > index, done.stderr
    found = json.loads(lines[index])
    assert found["difference"] < tolerance * found["change"]
    assert found["change"] > 1e-4
    assert found["equal"]


@pytest.mark.parametrize("start", range(len(STARTS)))
def test_ranks_exit_with_status_0(started: Callable[[int], subprocess.CompletedProcess[str]], start: int) -> None:
    assert started(start).returncode == 0, started(start).stderr


@pytest.mark.parametrize(("mpi", "np"), [("openmpi", 1), ("openmpi", 3), ("gloo", 2)])
def test_bf16_allreduce(hvscale: Run, program: Callable[[str], Path], mpi: str, np: int) -> None:
    path = program((PROGRAMS / "bf16_allreduce.py").read_text())
    done = hvscale("launch", "--mpi", mpi, "-np", np, "--", "python", path)
    assert done.returncode == 0, done.stderr
    [line] = re.findall(r"\{.*\}", done.stdout)
    found = json.loads(line)
    assert (found["size"], found["buckets"], found["unequal"]) == (np, 3, 0)
    assert 0 < found["difference"] < 2**-8  # of the largest gradient: bf16 has 8 bits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_adasum": True, "clip_norm": 1.0}, "leave out --clip-norm"),
        ({"use_adasum": True, "precision": "fp16"}, "--use-adasum and --precision fp16 exclude each other"),
        ({"use_adasum": True, "allreduce_groups": 2}, "leave out --allreduce-groups"),
        ({"allreduce_groups": 2, "gradient_predivide_factor": 2.0}, "leave out one"),
        ({"bf16_allreduce": True, "use_adasum": True}, "--bf16-allreduce and --use-adasum exclude each other"),
        ({"bf16_allreduce": True, "fp16_allreduce": True}, "--bf16-allreduce and --fp16-allreduce exclude each other"),
        ({"warmup_steps": 2, "warmup_epochs": 1}, "exclude each other"),
        ({"batches_per_allreduce": 0}, "--batches-per-allreduce 0"),
    ],
)
def test_incompatible_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        TrainConfig.of(steps=1, **options)


def test_step_counts_all_its_batches_and_epoch_reports_its_mean_loss(
    two_ranks: Ranks, photos: Path, tmp_path: Path
) -> None:
    options = {"n_resblocks": 1, "n_feats": 8, "batch_size": 1, "patch_size": 8, "precision": "fp32"}
    length = {"epochs": 1, "batches_per_allreduce": 100, "fp16_allreduce": True}
    request = {**options, **length, "data": str(photos), "run": str(tmp_path / "run")}
    done = two_ranks("train.py", json.dumps(request))
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    assert [(step["step"], step["images"]) for step in steps] == [(number, 200) for number in range(1, 11)]
    assert [step["epoch_loss"] is not None for step in steps] == [False] * 9 + [True]
    own = sum(step["loss"] for step in steps) / 10
    assert steps[-1]["epoch_loss"] == pytest.approx(own, rel=0.05)  # the other rank trained on other crops
    assert steps[-1]["epoch_loss"] != own
    assert f"epoch 1: mean loss {steps[-1]['epoch_loss']:.2f}" in done.stdout + done.stderr
