"""`hvscale launch --autotune` with real ranks."""

import html
import json
import os
import re
import shlex
import signal
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest

from hvscale.comm_tuning.autotune.memory import RememberedSettings, name_of
from hvscale.comm_tuning.autotune.next_start import next_start
from hvscale.comm_tuning.autotune.rank_side.request import words
from hvscale.comm_tuning.autotune.rank_side.result import gradients_digest
from hvscale.comm_tuning.autotune.rank_side.search import PROFILE_STEPS
from hvscale.core.autotune_result import AutotuneResult, Fingerprint, read_autotune_result
from hvscale.core.run_folder import Library, RunFolder
from hvscale.core.statistics import Estimate
from hvscale.launch.options import LaunchOptions
from tests.conftest import (
    HANG_SECONDS,
    MPICH_PREFIX,
    QUICK_START,
    YIELDS,
    Run,
    needs_mpich,
    run_hvscale,
    start_job,
    wait_until,
)

STEPS = 60
TRAINING = """
import os, sys, time, torch, horovod.torch as hvd
hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
data = torch.randn(8, 64, generator=torch.Generator().manual_seed(hvd.rank()))
for step in range({steps}):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    time.sleep(0.01)  # before the gradients, so that nothing hides their messages
    loss.backward()
    {extra}
    optimizer.step()
print("end", float(loss.detach()).hex(), sum(p.double().sum().item() for p in model.parameters()).hex(), flush=True)
"""
# Every kind of change: Horovod's knobs in place, and an algorithm by starting Horovod again.
ALL_KNOBS = {
    "fusion_threshold": "1M",
    "cycle_time": "2.5",
    "allreduce_algorithm": "segmented_ring",
    "segment_size": "32K",
}
ALL_KNOBS_OF_MPICH = {**ALL_KNOBS, "allreduce_algorithm": "tree"}


def training(steps: int = STEPS, extra: str = "pass") -> str:
    return f"\n{QUICK_START}{TRAINING.format(steps=steps, extra=extra)}"


def result_of(run: Path) -> AutotuneResult:
    found = read_autotune_result(RunFolder(run))
    assert found is not None
    return found


def remember(folder: Path, fingerprint: Fingerprint, settings: dict[str, str], mpi: str) -> Path:
    """Write settings as if an earlier run had proven them; return the file."""
    entry = RememberedSettings(
        fingerprint=fingerprint,
        settings=settings,
        gain=Estimate(mean=1.2, low=1.1, high=1.3),
        command=["python", "train.py"],
        launch=LaunchOptions(np=2, mpi=mpi),
        library=Library(flavour=mpi, version="1"),
        saved_at=datetime.now(UTC),
    )
    folder.mkdir(exist_ok=True)
    path = folder / f"{name_of(fingerprint)}.json"
    path.write_text(entry.model_dump_json(by_alias=True))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a job that is not tuned."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "program.py").write_text(training())
    done = run_hvscale(folder, "launch", "-np", 2, *YIELDS, "--run", "job", "--", "python", "program.py")
    assert done.returncode == 0, done.stderr
    return folder / "job"


def ends(run: Path) -> list[str]:
    logs = sorted((run / "logs").glob("rank-*.log"))
    assert len(logs) == 2
    return [line for log in logs for line in log.read_text().splitlines() if line.startswith("end ")]


def tuned(folder: Path, mpi: str, run: str, *options: object) -> str:
    """Run a tuned job; return what it printed on stderr."""
    done = run_hvscale(
        folder,
        "launch",
        "-np",
        2,
        *("--mpi", mpi, *YIELDS, "--run", run, "--autotune", *options, "--", "python", "program.py"),
        HVSCALE_SETTINGS_DIR=str(folder / "memory"),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stderr


def fingerprint(library: str) -> Fingerprint:
    """Of the program in these tests."""
    sizes = 8 * [(64 * 64 * 4, "torch.float32"), (64 * 4, "torch.float32")]
    return Fingerprint(
        gradients=gradients_digest(sizes),
        gradient_bytes=sum(size for size, _ in sizes),
        tensors=len(sizes),
        np=2,
        ranks_per_node=2,
        library=library,
    )


def library_of(run: Path) -> str:
    return RunFolder(run).read().library.name


# Each step also broadcasts 256 KiB.
BROADCAST = """
    sent = torch.full((1 << 16,), float(step) if hvd.rank() == 0 else -1.0)
    hvd.broadcast_(sent, 0)
    assert sent.eq(float(step)).all()
"""
COUNTED = re.compile(r"hvbcast: broadcasts of rank 0: (\d+) library, 0 flat, (\d+) chain, 0 k-nomial, (\d+) two-level")


def counted_broadcasts(run: Path) -> tuple[int, int]:
    """The broadcasts of rank 0 by the library, and by hvscale's chain."""
    log = (run / "logs/rank-00000.log").read_text()
    counted = COUNTED.search(log)
    assert counted is not None, log
    return int(counted[1]), int(counted[2])


@pytest.mark.parametrize("mpi", ["openmpi", "gloo"])
def test_remembered_settings_are_tried_and_the_losses_stay_the_same(tmp_path: Path, plain: Path, mpi: str) -> None:
    library = library_of(plain) if mpi == "openmpi" else f"gloo inside Horovod {metadata.version('horovod')}"
    settings = {**ALL_KNOBS, "hvscale_broadcast": "chain"} if mpi == "openmpi" else {"cycle_time": "2.5"}
    file = remember(tmp_path / "memory", fingerprint(library), settings, mpi)
    (tmp_path / "memory" / "damaged.json").write_text("{")
    (tmp_path / "program.py").write_text(training(extra=BROADCAST if mpi == "openmpi" else "pass"))
    stderr = tuned(tmp_path, mpi, "job", "--env", "HVBCAST_COUNTS=1")
    assert len(re.findall("damaged.json holds no remembered settings", stderr)) == 1
    found = result_of(tmp_path / "job")
    assert found.remembered != found.drops_remembered
    assert found.fingerprint == fingerprint(library)
    assert found.switches >= 4
    if found.remembered:
        assert found.settings == settings
    # Where they do not win, the search goes on and may find others.
    kept = found.settings or found.unproven
    assert file.exists() == bool(kept)
    if kept:
        assert json.loads(file.read_text())["settings"] == kept
    assert (tmp_path / "job/autotune/settings.toml").exists() == bool(found.settings)
    assert "hvscale: autotune: " in (tmp_path / "job/logs/rank-00000.log").read_text()
    # With two ranks the order of a sum does not matter: the same to the last bit.
    assert ends(tmp_path / "job") == ends(plain)
    if mpi == "openmpi":
        # Each pair of the proof has four steps of either side.
        assert min(counted_broadcasts(tmp_path / "job")) >= 12


def test_a_search_tries_candidates_in_the_running_job(tmp_path: Path, plain: Path) -> None:
    """Broadcasts of the steps are tuned too. Remembered settings of a knob that is gone are one
    line.
    """
    remember(tmp_path / "memory", fingerprint(library_of(plain)), {"no_such_knob": "1", "cycle_time": "5"}, "openmpi")
    (tmp_path / "program.py").write_text(training(90, extra=BROADCAST))
    tuned(tmp_path, "openmpi", "job", "--autotune-steps", 100_000, "--env", "HVBCAST_COUNTS=1")
    found = result_of(tmp_path / "job")
    assert found.trials
    assert found.switches
    assert {knob for trial in found.trials for knob in trial.settings} <= {
        *ALL_KNOBS,
        "broadcast_algorithm",
        "hvscale_broadcast",
    }
    assert "chain" in [trial.settings.get("hvscale_broadcast") for trial in found.trials]
    assert found.state in ("unfinished", "defaults", "tuned")
    assert counted_broadcasts(tmp_path / "job")[1]
    log = (tmp_path / "job/logs/rank-00000.log").read_text()
    assert log.count("remembered settings are not used: this job cannot change no_such_knob now") == 1


# With the defaults, rank 1 is late.
LATE = "time.sleep(0.2 if hvd.rank() and not hvd.mpi_ops.synchronize.__self__.switcher.current else 0)"
# Rank 0 waits once the search has settings that are faster.
INTERRUPTED = f"""
    {LATE}
    if not step:
        print("begins", flush=True)
    if hvd.rank() == 0 and os.path.exists("job/autotune/result.json"):
        print("waits", flush=True)
        time.sleep(1200)
"""
# Both ranks end with the step after the tuning.
ENDS_TUNED = f"""
    {LATE}
    if hvd.mpi_ops.synchronize.__self__.stage == "done":
        optimizer.synchronize()
        break
"""


def test_the_next_start_proves_what_an_interrupted_job_could_not(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    (tmp_path / "program.py").write_text(training(1000, INTERRUPTED))
    job = start_job(
        tmp_path,
        *("launch", "-np", 2, *YIELDS, "--run", "job", "--autotune", "--autotune-steps", 1000),
        *("--", "python", "program.py"),
        prints="begins",
        HVSCALE_SETTINGS_DIR=str(memory),
    )
    wait_until(lambda: "waits" in (tmp_path / "job/logs/rank-00000.log").read_text())
    job.send_signal(signal.SIGTERM)
    stderr = job.communicate(timeout=HANG_SECONDS)[1]
    assert job.returncode == 128 + signal.SIGTERM, stderr
    found = result_of(tmp_path / "job")
    assert (found.state, found.settings) == ("unfinished", {})
    assert found.unproven
    # The steps broadcast nothing.
    assert {knob for trial in found.trials for knob in trial.settings} <= ALL_KNOBS.keys()
    said = "autotune: nothing is proven: the job ended before the proof; the best so far: "
    assert f"{said}{words(found.unproven)}; remembered in {memory}" in " ".join(stderr.split())
    # More steps than the proof needs on a busy machine.
    (tmp_path / "program.py").write_text(training(300, ENDS_TUNED))
    tuned(tmp_path, "openmpi", "next", "--autotune-steps", 1000)
    following = result_of(tmp_path / "next")
    assert (following.state, following.settings, following.remembered) == ("tuned", found.unproven, True)
    [file] = memory.iterdir()
    assert RememberedSettings.model_validate_json(file.read_text()).gain == following.gain


REDIRECTED = """
import horovod.torch.mpi_ops as ops
from hvscale.comm_tuning.autotune.rank_side.horovod_knobs import THRESHOLD, HorovodKnobs
knobs = HorovodKnobs(ops)
knobs.take_over()
assert not knobs.problem, knobs.problem
assert not knobs.are_read
import horovod.torch as hvd
hvd.init()
for round, words in enumerate([{}, {THRESHOLD: "0"}, {THRESHOLD: "65536"}, {}]):
    knobs.set(words)
    hvd.barrier()
    # One call enqueues all eight at once, so that no cycle of a busy machine finds only some.
    handle = hvd.grouped_allreduce_async([torch.ones(4096)] * 8, name=str(round), op=hvd.Sum)
    assert all(torch.equal(one, torch.full((4096,), 2.0)) for one in hvd.synchronize(handle))
assert knobs.are_read
"""


def test_horovods_fusion_threshold_changes_in_place(tmp_path: Path) -> None:
    """Eight messages of 16 KiB: fused into one, none, groups of four, and one again."""
    (tmp_path / "program.py").write_text(f"{QUICK_START}\n{REDIRECTED}")
    done = run_hvscale(
        tmp_path,
        *("profile", "-np", 2, "--run", "job", "--bins", "pow2", "--json", "--", "python", "program.py"),
    )
    assert done.returncode == 0, done.stderr
    calls = {
        row["bytes_max"]: row["calls"] for row in json.loads(done.stdout)["rows"] if row["operation"] == "allreduce"
    }
    of_size = {size: count // 2 for size, count in calls.items() if size and size >= 16384}
    assert of_size == {16384: 8, 65536: 2, 131072: 2}


def test_an_operation_in_flight_keeps_the_settings(tmp_path: Path) -> None:
    pending = "pending = hvd.allreduce_async(torch.ones(1), name='metric') if step == 0 else pending"
    (tmp_path / "program.py").write_text(training(32, pending))
    assert "keeps operations of Horovod in flight between steps" in tuned(tmp_path, "openmpi", "job")
    assert result_of(tmp_path / "job").switches == 0


# Horovod has neither of the functions that read its knobs.
ANOTHER_HOROVOD = """
from hvscale.comm_tuning.autotune.rank_side import horovod_knobs
horovod_knobs.GETTERS = dict.fromkeys(horovod_knobs.GETTERS, "another_name")
"""


BOTH = ("HOROVOD_FUSION_THRESHOLD=65536", "HOROVOD_CYCLE_TIME=2.5")


@pytest.mark.parametrize(
    ("program", "variables", "restarts"),
    [("", BOTH, True), (ANOTHER_HOROVOD, BOTH[:1], True), ("", ("HOROVOD_FUSION_THRESHOLD=64M", BOTH[1]), False)],
)
def test_knobs_of_the_job_itself_stay_as_they_are(
    tmp_path: Path, plain: Path, program: str, variables: tuple[str, ...], restarts: bool
) -> None:
    """Algorithms change, unless Horovod itself has read both knobs: then it cannot start again."""
    settings = {"allreduce_algorithm": "segmented_ring"}
    remember(tmp_path / "memory", fingerprint(library_of(plain)), settings, "openmpi")
    (tmp_path / "program.py").write_text(program + training())
    tuned(tmp_path, "openmpi", "job", *(word for variable in variables for word in ("--env", variable)))
    assert (result_of(tmp_path / "job").switches >= 4) == restarts
    assert ends(tmp_path / "job") == ends(plain)


# The ranks have these numbers of steps in the first epoch, and take turns with them.
EPOCHS = """
def steps():
    for epoch in range(4):
        yield from range({counts}[(hvd.rank() + epoch) % 2])
        hvd.join()
for step in steps():"""
EARLY_JOIN = "the program called hvd.join() before all ranks had ended their warm-up"
# Horovod then ends a job that hangs.
STALL = ("--env", "HOROVOD_STALL_CHECK_TIME_SECONDS=60", "--env", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=120")


@pytest.mark.parametrize(("counts", "is_tuned"), [((1, 7), False), ((9, 4), False), ((14, 20), True)])
def test_ranks_that_join_after_different_numbers_of_steps(
    tmp_path: Path, plain: Path, counts: tuple[int, int], is_tuned: bool
) -> None:
    """One rank alone greets, begins the search, or ends a block, while the other has joined."""
    remember(tmp_path / "memory", fingerprint(library_of(plain)), ALL_KNOBS, "openmpi")
    program = training().replace(f"for step in range({STEPS}):", EPOCHS.format(counts=counts))
    (tmp_path / "program.py").write_text(program)
    tuned(tmp_path, "openmpi", "job", *STALL)
    found = result_of(tmp_path / "job")
    assert (found.reason != EARLY_JOIN) == is_tuned
    assert (found.switches >= 4) == is_tuned
    assert len(ends(tmp_path / "job")) == 2


# Each rank trains alone, at its own speed.
OWN_SETS = (
    training(10)
    .replace("hvd.init()", "sets = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]; hvd.init(process_sets=sets)")
    .replace("model.named_parameters()", "model.named_parameters(), process_set=sets[hvd.rank()]")
    + "hvd.barrier()\n"
)


ADASUM = training(24).replace("model.named_parameters()", "model.named_parameters(), op=hvd.Adasum")
# Rank 0 trains a second model, which the other does not have.
OWN_MODEL = """
    if hvd.rank() == 0:
        own(data).sum().backward()
        own.weight.grad = hvd.allreduce(own.weight.grad, name="own", process_set=alone)
        hvd.synchronize(hvd.broadcast_async(tensor=own.bias.grad, root_rank=0, process_set=alone))
        own_optimizer.step()
    optimizer.zero_grad()"""
INIT_FOR_OWN_MODEL = """alone = hvd.ProcessSet([0])
hvd.init(process_sets=[alone])
own = torch.nn.Linear(64, 1)
own_optimizer = torch.optim.SGD(own.parameters(), lr=0.1)"""
WITH_OWN_MODEL = (
    training(24).replace("\n    optimizer.zero_grad()", OWN_MODEL).replace("hvd.init()", INIT_FOR_OWN_MODEL)
)


@pytest.mark.parametrize("program", [ADASUM, WITH_OWN_MODEL], ids=["Adasum", "own model"])
def test_jobs_are_tuned_at_the_ends_of_whole_steps(tmp_path: Path, program: str) -> None:
    """The optimizer for Adasum runs a step of the inner one for each gradient."""
    (tmp_path / "program.py").write_text(program)
    tuned(tmp_path, "openmpi", "job", "--autotune-steps", 20, *STALL)
    found = result_of(tmp_path / "job")
    assert (found.state, found.steps) == ("defaults", PROFILE_STEPS)
    assert found.fingerprint is not None
    assert found.fingerprint.tensors == 16


OTHER_THREAD = """hvd.init()
import threading
def gather():
    for number in range(20):
        hvd.allgather(torch.ones(1), name="in another thread")
        time.sleep(0.05)
thread = threading.Thread(target=gather)"""


def test_horovod_does_not_start_again_while_another_thread_uses_it(tmp_path: Path, plain: Path) -> None:
    remember(tmp_path / "memory", fingerprint(library_of(plain)), ALL_KNOBS, "openmpi")
    program = training(40, "if step == 2: thread.start()").replace("hvd.init()", OTHER_THREAD) + "thread.join()\n"
    (tmp_path / "program.py").write_text(program)
    stderr = tuned(tmp_path, "openmpi", "job", *STALL)
    assert "or starts some in other threads" in stderr
    assert result_of(tmp_path / "job").switches == 0


FORK = """if step == 8:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until the rank has written its result
            sys.exit()"""


def test_a_process_that_a_rank_forks_leaves_the_tuning_alone(tmp_path: Path) -> None:
    """At its end it neither finalises MPI, which would hang, nor writes a result."""
    program = training(24, FORK) + "os.close(writer); print('child', os.waitpid(child, 0)[1], flush=True)\n"
    (tmp_path / "program.py").write_text(program)
    tuned(tmp_path, "openmpi", "job", "--autotune-steps", 20)
    found = result_of(tmp_path / "job")
    assert (found.state, found.steps) == ("defaults", PROFILE_STEPS)
    log = (tmp_path / "job/logs/rank-00000.log").read_text()
    assert "child 0" in log
    assert len([line for line in log.splitlines() if "autotune" in line]) == 1


SHUT_DOWN = """
from hvscale.comm_tuning.autotune.rank_side.agent import AGENTS
switcher = AGENTS[0].switcher
print("search", switcher.current, switcher.mpi.current, flush=True)
hvd.shutdown()
print("after", switcher.current, switcher.mpi.current, flush=True)
hvd.init()
for _ in range(3):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
print("trained", flush=True)
"""


def test_a_program_that_shuts_horovod_down_has_the_defaults_again(tmp_path: Path, plain: Path) -> None:
    """Before its training, which is then tuned, and in the middle of the search."""
    remember(tmp_path / "memory", fingerprint(library_of(plain)), ALL_KNOBS, "openmpi")
    program = training(8).replace("hvd.init()", "hvd.init(); hvd.shutdown(); hvd.init()") + SHUT_DOWN
    (tmp_path / "program.py").write_text(program)
    stderr = tuned(tmp_path, "openmpi", "job")
    assert "the program shut Horovod down after " in stderr
    for rank in range(2):
        lines = (tmp_path / f"job/logs/rank-{rank:05d}.log").read_text().splitlines()
        [search] = [line for line in lines if line.startswith("search ")]
        assert str(ALL_KNOBS) in search
        assert "after {} {}" in lines
        assert lines[-1] == "trained"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (f"{QUICK_START}\nimport horovod.torch as hvd; hvd.init()", "no optimizer step followed"),
        (OWN_SETS, "no optimizer step followed"),
        (training(4), "the program ended after 4 steps"),
        ("import os; os.environ['HOROVOD_AUTOTUNE'] = '1'" + training(10), "Horovod's own autotune is on"),
        (
            "import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1': os.environ['HVSCALE_AUTOTUNE'] = '{}'"
            + training(10),
            "another rank cannot be tuned",
        ),
    ],
)
def test_what_cannot_be_tuned_trains_all_the_same(tmp_path: Path, program: str, expected: str) -> None:
    (tmp_path / "program.py").write_text(program)
    stderr = tuned(tmp_path, "openmpi", "job")
    log = (tmp_path / "job/logs/rank-00000.log").read_text()
    assert expected in stderr + log
    assert len([line for line in log.splitlines() if "autotune" in line]) <= 1


def test_the_next_start_is_proposed_and_its_command_starts_the_job(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(training(20))
    fixed = ("--set", "cycle_time=4", "--env", "A_VARIABLE=1")
    done = run_hvscale(
        tmp_path,
        *("profile", "-np", 2, "--run", "job", *fixed, "--autotune", "--autotune-steps", 20),
        *("--", "python", "program.py"),
        HVSCALE_SETTINGS_DIR=str(tmp_path / "memory"),
    )
    assert done.returncode == 0, done.stderr
    proposed = result_of(tmp_path / "job").next_start
    assert proposed is not None
    names = [one.knob for one in proposed.knobs]
    assert "yield_when_idle" in names
    assert not {"fusion_threshold", "allreduce_algorithm", "cycle_time"} & set(names)  # live, or set by the user
    assert " ".join(done.stderr.split()).count(proposed.command) == 1
    assert run_hvscale(tmp_path, "report", "job").returncode == 0
    assert proposed.command in html.unescape((tmp_path / "job/report.html").read_text())
    assert proposed.command.startswith("hvscale tune -np 2 --env A_VARIABLE --knobs ")
    assert proposed.command.endswith(" --fix cycle_time=4 -- python program.py")
    result, record = result_of(tmp_path / "job"), RunFolder(tmp_path / "job").read()
    proven = result.model_copy(update={"settings": {"fusion_threshold": "1M"}})
    found = next_start(proven, ["python", "program.py"], LaunchOptions(np=2), record)
    assert found is not None
    assert " --fix fusion_threshold=1M -- " in found.command
    waits_little = result.model_copy(update={"wait_share": 0.009})
    assert next_start(waits_little, ["python", "program.py"], LaunchOptions(np=2), record) is None
    # A whole search takes minutes: here its first start ends with the program's own status.
    (tmp_path / "program.py").write_text("raise SystemExit(7)")
    done = run_hvscale(tmp_path, *shlex.split(proposed.command)[1:], A_VARIABLE="1")
    assert done.returncode == 3
    assert re.search(r"with the defaults rank \d on .* ended with status 7", " ".join(done.stderr.split()))


def test_the_trainer_tunes_itself_under_any_launcher(tmp_path: Path) -> None:
    model = ("edsr-baseline", "--n-resblocks", 1, "--n-feats", 8, "--patch-size", 16, "--threads", 1)
    fixed = ("--precision", "fp32", "--memory-format", "contiguous")
    done = run_hvscale(
        tmp_path,
        *("launch", "-np", 2, "--run", "job", "--env", f"HVSCALE_SETTINGS_DIR={tmp_path / 'memory'}", "--"),
        *("hvscale", "train", *model, *fixed, "--steps", 25, "--autotune", "--autotune-steps", 20),
    )
    assert done.returncode == 0, done.stderr
    found = result_of(tmp_path / "job")
    assert found.fingerprint is not None
    assert found.fingerprint.library.startswith("Open MPI v")
    assert found.steps >= 12


SABOTAGE = "import hvscale.comm_tuning.autotune.rank_side.agent as agent\nif hvd.rank() == 1: %s\nmodel ="
SLEEP = "agent.Switcher.switch = lambda *_: time.sleep(1200)"
SEND_WRONG = (
    "own = hvd.mpi_ops.synchronize.__self__.own; send = own['broadcast_async_']; "
    "own['broadcast_async_'] = lambda tensor, *more, **named: send(tensor + 1, *more, **named)"
)
ADD_ONE = "post = agent.Agent._post; agent.Agent._post = lambda self, tensor, name: post(self, tensor + name.startswith('check'), name)"
WRONG = "the ranks' sums or broadcasts are wrong; the defaults are in effect"
HUNG = (
    "hung for 3 s, so this rank ends: start the job without --autotune, or first remove settings that are remembered "
    "for it with `hvscale settings forget`"
)


@pytest.mark.parametrize(
    ("fault", "knobs", "status", "expected"),
    [
        (SLEEP, ALL_KNOBS, 3, HUNG),
        (ADD_ONE, ALL_KNOBS, 0, WRONG),
        (SEND_WRONG, {"hvscale_broadcast": "two_level"}, 0, WRONG),
    ],
)
def test_a_change_that_goes_wrong(
    tmp_path: Path, plain: Path, fault: str, knobs: dict[str, str], status: int, expected: str
) -> None:
    """A change that hangs on rank 1 ends the job. Wrong numbers bring the defaults back, and the
    remembered settings are forgotten.
    """
    file = remember(tmp_path / "memory", fingerprint(library_of(plain)), knobs, "openmpi")
    (tmp_path / "program.py").write_text(training().replace("model =", SABOTAGE % fault, 1))
    done = run_hvscale(
        tmp_path,
        *(
            "launch",
            "-np",
            2,
            "--run",
            "job",
            *YIELDS,
            "--env",
            f"HVSCALE_AUTOTUNE_TIMEOUT={3 if status else 120}",
            "--autotune",
        ),
        *("--", "python", "program.py"),
        HVSCALE_SETTINGS_DIR=str(tmp_path / "memory"),
    )
    assert done.returncode == status, done.stderr
    assert file.exists() == bool(status)
    assert expected in (tmp_path / "job/logs/rank-00000.log").read_text()
    if status == 0:
        assert ends(tmp_path / "job") == ends(plain)


# Ends MPI's tools interface on rank 1: the library then refuses each change.
END_TOOLS = """
    if hvd.rank() == 1 and step == {step}:
        from hvscale.comm_tuning.autotune.rank_side.switch import loaded_library
        import ctypes; assert ctypes.CDLL(loaded_library()).MPI_T_finalize() == 0
"""


@pytest.mark.parametrize(
    ("step", "status", "rank", "expected"),
    [
        (4, 0, 0, "the MPI library of another rank refuses it; the defaults are in effect again"),
        (7, 3, 1, "a change to the defaults failed, so this rank ends: OMPI_MCA_coll_tuned_"),
    ],
)
def test_a_change_that_one_rank_refuses(
    tmp_path: Path, plain: Path, step: int, status: int, rank: int, expected: str
) -> None:
    """Before the first change all ranks keep the defaults; later rank 1 cannot return to them."""
    file = remember(tmp_path / "memory", fingerprint(library_of(plain)), ALL_KNOBS, "openmpi")
    (tmp_path / "program.py").write_text(training(extra=END_TOOLS.format(step=step)))
    done = run_hvscale(
        tmp_path,
        *("launch", "-np", 2, *YIELDS, "--run", "job", "--autotune", "--", "python", "program.py"),
        HVSCALE_SETTINGS_DIR=str(tmp_path / "memory"),
    )
    assert done.returncode == status, done.stderr
    log = (tmp_path / f"job/logs/rank-{rank:05d}.log").read_text()
    assert file.exists() == bool(status)
    assert log.count("autotune:") == 1, log
    assert expected in log
    if status == 0:
        assert (result_of(tmp_path / "job").state, result_of(tmp_path / "job").settings) == ("unfinished", {})
        assert ends(tmp_path / "job") == ends(plain)


def test_steps_without_autotune_are_refused(hvscale: Run) -> None:
    done = hvscale("launch", "--autotune-steps", 9, "--", "true")
    assert done.returncode == 2
    assert "--autotune-steps has no effect without --autotune" in done.stderr
    done = hvscale("launch", "--autotune", "--autotune-steps", 9, "--", "true")
    assert (done.returncode, "give at least 20" in done.stderr) == (2, True)


def mpich_hvscale(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command of the environment with MPICH."""
    programs = MPICH_PREFIX / "bin"
    return subprocess.run(
        [programs / "hvscale", *map(str, arguments)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HVSCALE_SETTINGS_DIR": str(folder / "memory"),
        },
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


@needs_mpich
@pytest.mark.parametrize(
    ("transport", "more"), [("ucx", {"hvscale_broadcast": "chain"}), ("ofi", {"eager_threshold": "1M"})]
)
def test_mpich_changes_its_variables_in_a_running_job(
    tmp_path: Path, plain: Path, transport: str, more: dict[str, str]
) -> None:
    """Over ofi, which has more to try, a search without remembered settings comes first."""
    (tmp_path / "program.py").write_text(training())
    job = ("launch", "--mpi", "mpich", "-np", 2, "--transport", transport, *YIELDS)
    words = ("--autotune", "--", "python", "program.py") if transport == "ofi" else ("--", "true")
    first = mpich_hvscale(tmp_path, *job, "--run", "first", *words)
    assert first.returncode == 0, first.stderr
    if transport == "ofi":
        assert ends(tmp_path / "first") == ends(plain)
    remember(tmp_path / "memory", fingerprint(library_of(tmp_path / "first")), {**ALL_KNOBS_OF_MPICH, **more}, "mpich")
    done = mpich_hvscale(tmp_path, *job, "--autotune", "--run", "job", "--", "python", "program.py")
    assert done.returncode == 0, done.stderr
    found = result_of(tmp_path / "job")
    assert found.switches >= 4
    # With two ranks the order of a sum does not matter, nor does the library.
    assert ends(tmp_path / "job") == ends(plain)
