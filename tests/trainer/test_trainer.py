"""The training loop in a single process: order of hooks, and exact continuation from a state."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hvscale.core.errors import RequestError
from hvscale.trainer import TrainConfig
from hvscale.trainer.checkpoints.hook import PeriodicCheckpoints
from hvscale.trainer.checkpoints.store import Checkpoint, CheckpointFolder
from hvscale.trainer.optimizer import without_compiler
from hvscale.trainer.ranks import Ranks
from hvscale.trainer.system.precision import ComputeFormat
from hvscale.trainer.tasks.super_resolution import SuperResolution
from hvscale.trainer.trainer import Hook, StepReport, Trainer
from hvscale.trainer.training import build_trainable

FP32 = ComputeFormat("fp32", channels_last=False)


def make_trainer(steps: int, resume_from: Checkpoint | None = None) -> Trainer:
    options = {"n_resblocks": 1, "n_feats": 4, "batch_size": 1, "patch_size": 8, "data": "synthetic", "steps": steps}
    config, ranks = TrainConfig.of(**options, schedule="constant"), Ranks()
    workload = SuperResolution(config, ranks)
    torch.manual_seed(1)
    return Trainer(config, ranks, workload.build_model(), workload, FP32, resume_from)


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image_size": 64},
            "--image-size is for classifiers, and edsr-baseline is for super-resolution: leave it out",
        ),
        ({"num_classes": 3}, "--num-classes is for classifiers"),
        ({"data": "synthetic", "holdout": "cat"}, "--holdout does not apply to --data synthetic: leave it out"),
        ({"data": "synthetic", "val_data": "photos"}, "--val-data does not apply to --data synthetic"),
        ({"data": "synthetic", "cache_dir": Path("decoded")}, "--cache-dir does not apply to --data synthetic"),
        ({"cache_gb": 0}, "--cache-gb does not apply to --data bundled: leave it out"),
        ({"cache_gb": 0, "val_data": "typo"}, "^--val-data typo: no such folder"),  # a folder would be cached
    ],
)
def test_no_option_is_ignored(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SuperResolution(TrainConfig.of(**options), Ranks())


def test_an_output_of_another_size_is_an_error() -> None:
    work = SuperResolution(TrainConfig.of(data="synthetic", patch_size=8, batch_size=1), Ranks())
    lr, hr = work.load_batch(0)
    for output, found in ((lr.float(), r"a tensor of shape \(1, 3, 8, 8\)"), ((hr, hr), "a tuple")):
        with pytest.raises(RequestError, match=rf"^edsr-baseline returned {found} .* of shape \(1, 3, 16, 16\)$"):
            work.loss(output, hr)


def test_only_contiguous_weights_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    work = SuperResolution(TrainConfig.of(data="synthetic", patch_size=8, batch_size=1), Ranks())
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    monkeypatch.setattr(work, "build_model", lambda: model)
    assert not model.weight.is_contiguous()
    build_trainable(work, "own:net", is_sent=True)
    assert model.weight.is_contiguous()
    model.strided = nn.Parameter(torch.zeros(2, 3).t())
    build_trainable(work, "own:net", is_sent=False)
    with pytest.raises(RequestError, match=r"^own:net: Horovod cannot send its parameter strided, .* add \.contig"):
        build_trainable(work, "own:net", is_sent=True)


def test_a_folder_that_takes_no_checkpoints_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    in_the_way = tmp_path / "checkpoints"
    in_the_way.write_text("a file")
    trainer = make_trainer(steps=100)
    with pytest.raises(RequestError, match=f"^cannot write checkpoints to {in_the_way}: File exists. Choose another"):
        trainer.run([PeriodicCheckpoints(CheckpointFolder(in_the_way, keep=3), every=50)])
    assert trainer.step == 0


class Recorder(Hook):
    def __init__(self, name: str, calls: list[str], stop_after: int | None = None) -> None:
        self.name, self.calls, self.stop_after = name, calls, stop_after

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        self.calls.append(f"{self.name} start")

    def before_step(self) -> None:
        self.calls.append(f"{self.name} before {self.trainer.step + 1}")

    def after_step(self, step: StepReport) -> None:
        self.calls.append(f"{self.name} after {step.number}")
        if step.number == self.stop_after:
            self.trainer.stop()

    def on_end(self) -> None:
        self.calls.append(f"{self.name} end")


class Failing(Hook):
    def after_step(self, step: StepReport) -> None:
        raise ValueError("a hook failed")


def test_hooks_run_in_order_and_can_end_training() -> None:
    calls: list[str] = []
    make_trainer(steps=100).run([Recorder("a", calls), Recorder("b", calls, stop_after=2)])
    each = [f"{name} {when} {step}" for step in (1, 2) for when in ("before", "after") for name in "ab"]
    assert calls == ["a start", "b start", *each, "b end", "a end"]


def test_hooks_end_after_an_error() -> None:
    calls: list[str] = []
    with pytest.raises(ValueError, match="a hook failed"):
        make_trainer(steps=100).run([Recorder("a", calls), Failing()])
    assert calls == ["a start", "a before 1", "a after 1", "a end"]


def test_training_continues_exactly_from_a_state() -> None:
    whole, first = make_trainer(steps=6), make_trainer(steps=3)
    whole.run()
    first.run()
    second = make_trainer(steps=6, resume_from=copy.deepcopy(first.state_dict()))
    assert second.step == 3
    second.run()
    assert (second.step, len(second.step_seconds)) == (6, 3)
    assert torch.equal(parameters(whole.model), parameters(second.model))


def test_train_step_runs_one_step() -> None:
    trainer = make_trainer(steps=1)
    assert not trainer.finished
    report = trainer.train_step(trainer.workload.load_batch)
    assert (report.number, trainer.step, trainer.finished) == (1, 1, True)
    assert report.loss > 0


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_the_optimizers_without_the_compiler_make_torch_s_steps(kind: type[torch.optim.Optimizer]) -> None:
    trained = []
    for used in (kind, without_compiler(kind)):
        weights = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = used([weights], lr=0.1, weight_decay=0.01, fused=True)  # type: ignore[call-arg]
        for _ in range(3):
            optimizer.zero_grad()
            (weights**3).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        copied = used([weights], lr=0.1, fused=True)  # type: ignore[call-arg]
        copied.load_state_dict(optimizer.state_dict())
        trained.append((weights.detach(), copied.state_dict()))
    (weights, state), (expected, expected_state) = reversed(trained)
    assert torch.equal(weights, expected)
    assert str(state) == str(expected_state)


def test_chosen_images_of_any_folder_beside_validation_data(photos: Path) -> None:
    """No default range of DIV2K is checked: --val-data takes its place."""
    options = {"n_resblocks": 1, "n_feats": 4, "batch_size": 1, "patch_size": 8, "steps": 1, "cache_gb": 0}
    config = TrainConfig.of(**options, data=str(photos), train_images="1-2", val_data=str(photos))
    task = SuperResolution(config, Ranks())
    assert [photo.name for photo in task.training] == ["a", "b"]
    assert [photo.name for photo in task.validation] == ["a", "b", "c"]
