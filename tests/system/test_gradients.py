"""`hvscale profile --gradients` against programs whose gradients are known."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.gradients import JobGradients, read_job_gradients
from hvscale.profiling.read.gradients_file import GradientTensor, read_gradients
from hvscale.profiling.record import STEP_LOG
from tests.conftest import Run

STEPS = 8
START = "import horovod.torch as hvd, time, torch\nhvd.init()\n"
LAYERS = "torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)"
# float32 values: 4 x 3 + 3 and 3 x 2 + 2.
BYTES = {"0.weight": 48, "0.bias": 12, "1.weight": 24, "1.bias": 8}

TRAINING = f"""{START}
model = torch.nn.Sequential({LAYERS})
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(), %s
)
for step in range({STEPS}):
    time.sleep(0.02)
    optimizer.zero_grad()
    model(torch.ones(5, 4)).sum().backward()
    optimizer.step()
"""
BY_HAND = f"""{START}
parts = [torch.ones(100, dtype=torch.float64), torch.ones(7, dtype=torch.float16)]
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
for step in range({STEPS}):
    for part in parts:
        hvd.allreduce(part)
    optimizer.step()
"""
TWO_OPTIMIZERS = f"""{START}
one, other = torch.nn.Linear(4, 3), torch.nn.Linear(2, 2)
optimizers = [
    hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), named_parameters=m.named_parameters(name))
    for name, m in (("one", one), ("other", other))
]
for step in range({STEPS}):
    for optimizer, model, data in zip(optimizers, (one, other), (torch.ones(5, 4), torch.ones(5, 2))):
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
    if step == 5:
        hvd.allreduce(torch.ones(1), name="metric")
"""


@pytest.fixture
def record(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> Callable[..., JobGradients]:
    """Run a program on two ranks and read its gradients."""

    def run(text: str, *options: str) -> JobGradients:
        done = hvscale("profile", "--gradients", "-np", 2, "--run", "job", *options, "--", "python", program(text))
        assert done.returncode == 0, done.stderr
        assert re.search(r"^gradients: \d+ tensors, ", done.stderr, re.M)
        return read_job_gradients(RunFolder(tmp_path / "job"))

    return run


@pytest.mark.parametrize("mpi", ["openmpi", "gloo"])
def test_an_optimizers_gradients_have_names_sizes_and_times(record: Callable[..., JobGradients], mpi: str) -> None:
    """After the last step, rank 1 waits for rank 0: that is not part of the step."""
    waits = "time.sleep(hvd.rank() == 0)\nhvd.broadcast_object(1, 0)\n"
    found = record(TRAINING % "" + waits, "--mpi", mpi)
    assert {tensor.name: tensor.bytes for tensor in found.tensors} == BYTES
    described = found.ranks[0].recording.tensors
    assert len(described) == len(BYTES)
    assert described[0] == GradientTensor(
        name=described[0].name,
        dtype="float32",
        bytes=BYTES[described[0].name],
        group=None,
        process_set=0,
        device="cpu",
    )
    assert found.size == len(found.ranks) == 2
    # The first step is excluded; the optimizer's end marks the last one.
    assert found.numbers == list(range(1, STEPS))
    assert (found.seconds > 0.02).all()
    assert (found.enqueued > 0.02).all()
    assert (found.enqueued <= found.seconds[..., None]).all()
    assert ((found.blocked > 0) & (found.blocked < found.seconds - 0.02)).all()
    for rank in found.ranks:
        for number in found.numbers:
            step = rank.steps[number]
            # One wait, after all gradients are enqueued, covers all of them.
            assert (step.positions.tolist(), step.handles.tolist()) == ([4], [4])
            assert step.begins[0] >= step.enqueued.max()
            assert step.ends[0] <= step.seconds


def test_a_program_that_ends_horovod_itself_keeps_its_last_step(record: Callable[..., JobGradients]) -> None:
    found = record(TRAINING % "" + "hvd.shutdown()\n")
    assert found.numbers == list(range(1, STEPS))
    assert not found.warnings


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
def test_gradients_on_a_gpu_have_its_times_beside_the_host_s(record: Callable[..., JobGradients]) -> None:
    """The GPU computes each step for 50 ms, and the host enqueues it long before that."""
    program = (TRAINING % "").replace("time.sleep(0.02)", "torch.cuda._sleep(10**8)")
    program = program.replace("model = torch.nn.Sequential(", "model = torch.nn.Sequential(*[").replace(
        "Linear(3, 2))", "Linear(3, 2)]).cuda()"
    )
    found = record(program.replace("torch.ones(5, 4)", "torch.ones(5, 4, device='cuda')"))
    assert found.on_gpu is not None
    ready, after = found.on_gpu
    assert (ready.min(axis=2) > 0.02).all()
    assert (after < 0.02).all()


def test_optimizer_groups_are_recorded(record: Callable[..., JobGradients]) -> None:
    found = record(TRAINING % "groups=2")
    groups = {tensor.group for tensor in found.tensors}
    assert len(groups) == 2
    assert None not in groups
    assert sorted(tensor.bytes for tensor in found.tensors) == sorted(BYTES.values())


def test_tensors_without_a_name_are_identified_by_their_order(record: Callable[..., JobGradients]) -> None:
    found = record(BY_HAND)
    assert [(tensor.dtype, tensor.bytes) for tensor in found.tensors] == [("float64", 800), ("float16", 14)]
    # The program waits for each all-reduce before the next one.
    step = found.ranks[1].steps[found.numbers[0]]
    assert (step.positions.tolist(), step.handles.tolist()) == ([1, 2], [1, 1])
    assert len(found.numbers) == STEPS - 1


def test_a_step_may_have_two_optimizers_and_metrics_are_excluded(record: Callable[..., JobGradients]) -> None:
    found = record(TWO_OPTIMIZERS)
    assert {tensor.name for tensor in found.tensors} == {"one.weight", "one.bias", "other.weight", "other.bias"}
    # The metric of step 5 is enqueued after the last optimizer's end, so it begins step 6.
    assert found.numbers == [1, 2, 3, 4, 5, 7]
    assert found.left_out == 1


def test_a_killed_rank_keeps_its_complete_steps(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    text = (
        TRAINING % ""
        + "    if step == 5 and hvd.rank() == 1: import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = hvscale("profile", "--gradients", "-np", 2, "--run", "job", "--", "python", program(text))
    assert done.returncode == 3, done.stderr
    # Step 5 is written only when step 6 begins.
    assert [step.number for step in read_gradients(tmp_path / "job/hvprof/gradients-00001.hvg").steps] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert read_job_gradients(RunFolder(tmp_path / "job")).numbers == [1, 2, 3, 4]


def test_a_full_disk_stops_the_recording_but_not_the_job(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1200, 1200))\n"
    text = (TRAINING % "").replace("for step", limit + "for step", 1) + "print('trained')\n"
    done = hvscale("profile", "--gradients", "-np", 2, "--run", "job", "--", "python", program(text))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2
    assert "hvscale: gradients are no longer recorded: File too large" in done.stdout + done.stderr
    steps = read_gradients(tmp_path / "job/hvprof/gradients-00000.hvg").steps
    assert [step.number for step in steps] == list(range(len(steps)))
    assert 1 < len(steps) < STEPS - 1


def test_sitecustomize_still_runs_the_log_in_c_is_loaded_and_one_rank_has_no_gradients(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    """Horovod's optimizer exchanges nothing in a job of one rank."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    shown = "import builtins, sys\nprint(builtins.customized, [path for path in sys.path if 'rank_side' in path])\n"
    shown += f"print('{STEP_LOG} is loaded:', '{STEP_LOG}' in open('/proc/self/maps').read())\n"
    done = hvscale(
        *("profile", "--gradients", "-np", 1, "--env", f"PYTHONPATH={site}", "--run", "job", "--"),
        *("python", program(TRAINING % "" + shown)),
    )
    assert "True []" in done.stdout
    assert f"{STEP_LOG} is loaded: True" in done.stdout
    assert done.returncode == 0, done.stderr
    assert "run folder: " in done.stderr
    assert "hvscale: warning: no gradients were recorded: --gradients needs a program that uses" in done.stderr
