"""`hvscale replay` of recorded jobs: its messages, and its use with other commands."""

import json
import os
import re
import shutil
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvscale.comm_tuning.tune.job_profile import job_profile
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.bytes_per_step import INFERRED
from hvscale.profiling.analyze.gradients import read_job_gradients
from hvscale.profiling.record.rank_side.gradient_recorder import FRAME, MAGIC
from tests.conftest import DIRECT_START, HANG_SECONDS, PROGRAMS, Run, run_hvscale, run_json, wait_until, write_program

SENT = 2 * 1000 * 4  # bytes of the gradients
PROGRAM = """
import horovod.torch as hvd, torch
hvd.init()
model = torch.nn.Linear(100, 10, bias=False), torch.nn.Linear(10, 100, bias=False)
model = torch.nn.Sequential(*model)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
for step in range(12):
    optimizer.zero_grad()
    model(torch.ones(5, 100)).sum().backward()
    optimizer.step()
"""

SETTINGS = """
schema = "hvscale/settings/1"
mpi = "openmpi"

[set]
allreduce_algorithm = "ring"
fusion_threshold = "1M"
"""
TABLE = """
schema = "hvscale/collectives/1"
mpi = "openmpi"

[[rule]]
operation = "allreduce"
np = 3
ranks_per_node = 3
bytes_min = 1000
algorithm = "library"
library_algorithm = "ring"
"""


# Read by each Python at its start: allows it two cores, and prints at its end those it had then.
TWO_CORES = """
import atexit, os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
atexit.register(lambda: print("cores", *sorted(os.sched_getaffinity(0)), flush=True))
"""
MARKED = PROGRAM.replace("import horovod", "from hvscale import profiling\nimport horovod").replace(
    "    optimizer.zero_grad()", "    profiling.step()\n    optimizer.zero_grad()"
)
UNMARKED = "import time\n" + PROGRAM.replace("10, 100", "10, 30").replace("step()\n", "step()\n    time.sleep(0.02)\n")
UNMARKED_SENT = (1000 + 300) * 4
TWO_ALL_REDUCES = "from mpi4py import MPI\nfor step in range(2): MPI.COMM_WORLD.allreduce(step)"
LABEL = "fused messages only, fixed pattern"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of 12 steps, of two tensors each, without fusion. Tests leave it as it is."""
    folder = tmp_path_factory.mktemp("recording")
    write_program(folder, PROGRAM)
    options = ("--gradients", "-np", 2, "--set", "fusion_threshold=0", "--run", "recorded")
    done = run_hvscale(folder, "profile", *options, "--", "python", "program.py")
    assert done.returncode == 0, done.stderr
    return folder / "recorded"


@pytest.fixture(scope="module")
def replayed(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The run of a replay of the recording, and its document. Tests leave the run as it is."""
    run = tmp_path_factory.mktemp("replay") / "replayed"
    done = run_hvscale(run.parent, "replay", recorded, "--run", "replayed", "--bins", "1K,8K", "--json")
    assert done.returncode == 0, done.stderr
    return run, json.loads(done.stdout)


@pytest.fixture
def own_recording(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the recording that the test may change."""
    return Path(shutil.copytree(recorded, tmp_path / "recorded"))


def test_a_replay_sends_the_gradients_of_each_step(hvscale: Run, recorded: Path, tmp_path: Path) -> None:
    """Three ranks on two cores keep to one core each."""
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/sitecustomize.py").write_text(TWO_CORES)
    done = hvscale(
        *("profile", "-np", 3, "--run", "replayed", "--bins", "1024", "--json"),
        *("--env", f"PYTHONPATH={tmp_path / 'startup'}", "--"),
        *("hvscale", "replay", recorded, "--steps", 7),
    )
    assert done.returncode == 0, done.stderr
    assert "replay: 7 steps (the first not counted), median " in done.stderr
    logs = [(tmp_path / f"replayed/logs/rank-0000{rank}.log").read_text() for rank in range(3)]
    cores = sorted(os.sched_getaffinity(0))[:2]
    assert [re.findall("cores (.+)", log) for log in logs] == [[str(cores[rank % len(cores)])] for rank in range(3)]
    # Horovod's own negotiation messages are smaller.
    (large,) = [
        row for row in json.loads(done.stdout)["rows"] if (row["operation"], row["bytes_min"]) == ("allreduce", 1025)
    ]
    assert large["bytes"] == 3 * 7 * SENT
    steps = (tmp_path / "replayed/steps.jsonl").read_text().splitlines()
    assert len(steps) == 7
    assert all(0 <= json.loads(line)["communication_seconds"] < json.loads(line)["seconds"] for line in steps)


def test_a_replay_runs_under_mpirun(recorded: Path) -> None:
    plain = subprocess.run(
        [
            *(str(PROGRAMS / "mpirun"), "--map-by", "slot:OVERSUBSCRIBE", "-np", "2"),
            *(str(PROGRAMS / "hvscale"), "replay", str(recorded), "--steps", "3"),
        ],
        env={**os.environ, **DIRECT_START},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    assert "replay: 3 steps" in plain.stdout


def test_hvscale_train_records_gradients_and_its_replay_reports_images(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale(
        *("profile", "--gradients", "-np", 2, "--run", "trained", "--"),
        *("hvscale", "train", "edsr", "--n-resblocks", 1, "--n-feats", 8),
        *("--batch-size", 2, "--patch-size", 8, "--steps", 8, "--precision", "fp32", "--memory-format", "contiguous"),
    )
    assert done.returncode == 0, done.stderr
    gradients = read_job_gradients(RunFolder(tmp_path / "trained"))
    assert len(gradients.numbers) == len((tmp_path / "trained/steps.jsonl").read_text().splitlines()) - 1
    assert "head.0.weight" in {tensor.name for tensor in gradients.tensors}
    scaled = hvscale(
        *("scale", "--np", "1,2", "--repeat", 1, "--run", "scaled", "--json", "--"),
        *("hvscale", "replay", "trained", "--steps", 6),
    )
    assert scaled.returncode == 0, scaled.stderr
    rows = json.loads(scaled.stdout)["rows"]
    assert [row["np"] for row in rows] == [1, 2]
    assert all(row["throughput"] > 0 for row in rows)


def large_all_reduces(document: str) -> tuple[int, int]:
    """Calls and bytes; Horovod's own negotiation messages are smaller."""
    rows = [row for row in json.loads(document)["rows"] if row["operation"] == "allreduce" and row["bytes_min"] > 1024]
    return sum(row["calls"] for row in rows), sum(row["bytes"] for row in rows)


def test_a_run_without_gradients_is_replayed_from_its_messages(hvscale: Run, program: Callable[[str], Path]) -> None:
    done = hvscale("profile", "-np", 2, "--run", "messages", "--", "python", program(MARKED))
    assert done.returncode == 0, done.stderr
    replayed = hvscale("replay", "messages", "--steps", 3, "--set", "fusion_threshold=16M", "--run", "replayed")
    assert replayed.returncode == 0, replayed.stderr
    warning = f"hvscale: warning: {LABEL}: messages holds no gradients, so the messages of a typical step are used"
    assert replayed.stderr.count(warning) == 1
    assert f" ms; {LABEL}\n" in replayed.stdout
    assert "HOROVOD_FUSION_THRESHOLD" not in replayed.stdout
    exported = hvscale("trace", "messages", "--chakra", "trace")
    assert exported.returncode == 0, exported.stderr
    messages = int(exported.stderr.split()[-2])
    # Horovod would fuse two messages of the same cycle: it does not, whatever the settings.
    counted = hvscale("breakdown", "replayed", "--bins", "1024", "--json")
    assert counted.returncode == 0, counted.stderr
    assert large_all_reduces(counted.stdout) == (2 * 3 * messages, 2 * 3 * SENT)
    profiled = hvscale(
        *("profile", "-np", 3, "--set", "fusion_threshold=16M", "--bins", "1024", "--json"),
        *("--", "hvscale", "replay", "messages", "--steps", 6),
    )
    assert profiled.returncode == 0, profiled.stderr
    assert large_all_reduces(profiled.stdout) == (3 * 6 * messages, 3 * 6 * SENT)
    assert LABEL in profiled.stderr


def test_steps_that_a_program_does_not_mark_are_found_in_its_messages(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    options = ("-np", 2, "--set", "fusion_threshold=0", "--run", "messages")
    done = hvscale("profile", *options, "--", "python", program(UNMARKED))
    assert done.returncode == 0, done.stderr
    exported = hvscale("trace", "messages", "--chakra", "trace")
    assert exported.returncode == 0, exported.stderr
    assert f"messages: {INFERRED}\n" in exported.stderr
    replayed = hvscale("replay", "messages", "--steps", 5, "--run", "replayed")
    assert replayed.returncode == 0, replayed.stderr
    counted = hvscale("breakdown", "replayed", "--bins", "1024", "--json")
    assert large_all_reduces(counted.stdout)[1] == 2 * 5 * UNMARKED_SENT
    explained = json.loads(hvscale("breakdown", "messages", "--json").stdout)
    exposed = explained["exposed_communication"]
    assert (exposed["basis"], exposed["mean_share_at_least"]) == ("calls", 0)
    assert exposed["step_count"] in (11, 12), "without a message before it, the first step's begin is unknown"
    # The first step may begin with a message right before its own.
    assert exposed["mean_step_seconds"] * exposed["step_count"] >= 11 * 0.02
    assert INFERRED in explained["warnings"]
    compared = json.loads(hvscale("compare", "messages", "messages", "--json").stdout)
    assert (compared["per"], compared["steps_before"]) == ("step", exposed["step_count"])
    assert compared["warnings"].count(f"messages: {INFERRED}") == 2
    assert job_profile(RunFolder(tmp_path / "messages")).step_bytes == UNMARKED_SENT
    assert hvscale("report", "messages", "--trace", "trace.json").returncode == 0
    assert '"steps, inferred"' in (tmp_path / "trace.json").read_text()
    remark = f"mean of {exposed['step_count']} steps, inferred from the messages"
    assert remark in (tmp_path / "messages/report.html").read_text()


def test_a_run_without_gradients_and_steps_is_refused(hvscale: Run) -> None:
    done = hvscale("profile", "-np", 2, "--run", "messages", "--", "python", "-c", TWO_ALL_REDUCES)
    assert done.returncode == 0, done.stderr
    for command in (["replay", "messages"], ["trace", "messages", "--chakra", "trace"]):
        refused = hvscale(*command)
        assert refused.returncode == 2
        assert refused.stderr == (
            "hvscale: messages holds no gradients, and its messages cannot replace them: their steps are unknown. "
            "Use `hvscale profile --gradients`\n"
        )


def test_a_recording_is_exported_for_chakra(hvscale: Run, recorded: Path, tmp_path: Path) -> None:
    done = hvscale("trace", recorded, "--chakra", "trace", "--steps", "2-3")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "trace: trace.0.et to trace.1.et, 2 steps of 2 gradients\n"
    assert sorted(path.name for path in tmp_path.glob("*.et")) == ["trace.0.et", "trace.1.et"]
    plain = hvscale("trace", recorded)
    assert (plain.returncode, plain.stderr) == (2, "hvscale: Missing option '--chakra'.\n")


def test_a_replay_is_compared_with_its_recording(replayed: tuple[Path, dict[str, Any]]) -> None:
    """Without fusion each of the two tensors is a message."""
    run, document = replayed
    assert document["schema"] == "hvscale/replay/1"
    assert (document["np"], document["differences"]) == (2, [])
    assert document["compute"] in ("spin", "sleep")  # what --compute auto chose
    assert f" ms, --compute {document['compute']}; " in RunFolder(run).log(0).read_text()
    assert document["replayed_run"] == str(run)
    assert run_json(run)["np"] == 2
    for side in (document["recorded"], document["replayed"]):
        assert side["count"] == 10  # of 11: the first one sets Horovod up
        assert 0 < side["exposed_seconds"] < side["mean_seconds"]
        assert side["messages"] == 2
    assert document["sizes"] == [{"bytes_min": 1025, "bytes_max": 8192, "recorded": 2, "replayed": 2}]
    lines = (run / "steps.jsonl").read_text().splitlines()[1:]
    mean = sum(json.loads(line)["seconds"] for line in lines) / 10
    assert document["replayed"]["mean_seconds"] == pytest.approx(mean)


def test_settings_of_a_replay_take_effect(hvscale: Run, recorded: Path, tmp_path: Path) -> None:
    """A cycle of 50 ms fuses the two tensors, which follow each other at once, in most steps."""
    (tmp_path / "settings.toml").write_text(SETTINGS)
    done = hvscale(
        "replay", recorded, "--settings", "settings.toml", "--set", "cycle_time=50", "--json", "--run", "run"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["recorded"]["messages"] == 2
    assert document["replayed"]["messages"] < 1.5
    assert {
        "HOROVOD_CYCLE_TIME not set against 50.0",
        "HOROVOD_FUSION_THRESHOLD 0 against 1048576",
        "OMPI_MCA_coll_tuned_allreduce_algorithm not set against 4",
    } <= set(document["differences"])
    assert in_effect(tmp_path / "run")["coll_tuned_allreduce_algorithm"] == "ring"


def test_a_replay_uses_a_collectives_table(hvscale: Run, recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE)
    done = hvscale("replay", recorded, "-np", 3, "--collectives", "table.toml", "--run", "run", "--steps", 5)
    assert done.returncode == 0, done.stderr
    assert "[0] replay: 5 steps (the first not counted), median " in done.stdout
    assert "np 3, 5 steps (the first not counted), --compute" in done.stdout
    assert "; recorded on 2 ranks: " in done.stdout
    assert in_effect(tmp_path / "run")["coll_tuned_dynamic_rules_filename"].endswith("openmpi-coll-rules.conf")
    assert (
        "not the recorded job (recorded against replayed): np 2 against 3; collectives not set against" in done.stdout
    )


def in_effect(run: Path) -> dict[str, Any]:
    """The settings that Open MPI reports as in effect."""
    [reported] = [one for one in run_json(run)["settings_in_effect"] if one["library"].startswith("Open MPI")]
    assert reported["not_applied"] == {}
    found: dict[str, Any] = reported["settings"]
    return found


def test_other_commands_take_a_replay(hvscale: Run, recorded: Path, replayed: tuple[Path, dict[str, Any]]) -> None:
    replay = ("--", "hvscale", "replay", recorded)
    metric = ("--metric", r"replay: (?P<total>[0-9]+) steps")
    compared = hvscale(
        *("compare-settings", "mpi,mpi-opt", "-np", 2, "--repeat", 1, "--json", "--run", "compared", *metric, *replay)
    )
    assert compared.returncode == 0, compared.stderr
    assert [row["throughputs"] for row in json.loads(compared.stdout)["rows"]] == [[11.0], [11.0]]
    tables = hvscale(
        *("tune-collectives", "-np", 2, "--from", replayed[0], "--run", "tables", "--json", "--minutes", 0.5),
        timeout=HANG_SECONDS,
    )
    assert tables.returncode == 0, tables.stderr
    assert json.loads(tables.stdout)["sizes"] == {"allreduce": [4096]}


def test_tune_takes_a_replay(recorded: Path, tmp_path: Path) -> None:
    """Two trials; the proof, which starts replays in the same way many times, is cut short."""
    words = ("tune", "-np", 2, "--trials", 2, "--trial-seconds", 2, "--run", "tuned")
    command = [PROGRAMS / "hvscale", *words, "--", "hvscale", "replay", recorded, "--steps", 1_000_000]
    with subprocess.Popen([str(word) for word in command], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as search:
        document = tmp_path / "tuned" / "tune.json"

        def trials() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = json.loads(document.read_text())["trials"] if document.exists() else []
            return found

        wait_until(lambda: len(trials()) == 2 or search.poll() is not None)
        search.send_signal(signal.SIGINT)
        _, errors = search.communicate(timeout=HANG_SECONDS)
    assert search.returncode in (0, 130), errors  # 0 if there is nothing to prove
    assert [trial["state"] for trial in trials()] in (["measured"] * 2, ["measured", "stopped early"])
    assert all(trial["throughput"]["mean"] > 0 for trial in trials())


def frames(recording: Path) -> Iterator[tuple[bytes, bytes]]:
    """The kind and the payload of each frame of a rank's recording."""
    content = recording.read_bytes()
    while content:
        kind, size, _ = FRAME.unpack_from(content)
        yield kind, content[FRAME.size : FRAME.size + size]
        content = content[FRAME.size + size :]


def frame(kind: bytes, payload: bytes) -> bytes:
    return FRAME.pack(kind, len(payload), zlib.crc32(payload)) + payload


def change(recorded: Path, kind: bytes, **fields: object) -> None:
    """Change fields of the JSON in all frames of one kind, in the recordings of all ranks."""
    for path in (recorded / "hvprof").glob("gradients-*.hvg"):
        changed = b""
        for found, payload in frames(path):
            if found == kind:
                start = MAGIC if kind == b"HEAD" else b""
                payload = start + json.dumps({**json.loads(payload[len(start) :]), **fields}).encode()
            changed += frame(found, payload)
        path.write_bytes(changed)


def test_a_recording_of_another_horovod_on_gpus_without_messages_is_replayed_with_warnings(
    hvscale: Run, own_recording: Path
) -> None:
    change(own_recording, b"HEAD", horovod="0.19.1")
    change(own_recording, b"TNSR", device="cuda")
    for path in (own_recording / "hvprof").glob("rank-*"):
        path.unlink()
    done = hvscale("replay", own_recording, "--compute", "spin", "--json")
    assert done.returncode == 0, done.stderr
    assert "hvscale: warning: recorded with Horovod 0.19.1, replayed with 0.28.1: " in done.stderr
    assert done.stderr.count("recorded with Horovod") == 1
    assert done.stderr.count("hvscale: warning: the job was recorded on GPUs; the replay sends host memory") == 1
    assert "fused messages are unknown" in done.stderr
    document = json.loads(done.stdout)
    assert (document["recorded"]["messages"], document["replayed"]["messages"], document["sizes"]) == (None, 2, [])
    assert "[0] replay: 11 steps (the first not counted), median " in done.stderr
    assert " ms, --compute spin; " in done.stderr
    assert "; recorded on 2 ranks: " in done.stderr


def test_the_whole_steps_of_a_truncated_recording_are_replayed(hvscale: Run, own_recording: Path) -> None:
    path = own_recording / "hvprof/gradients-00001.hvg"
    path.write_bytes(path.read_bytes()[:-250])  # in the middle of a step
    done = hvscale("replay", own_recording, "-np", 1, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    steps = document["steps"]
    assert document["replayed"]["count"] == steps - 1
    assert 1 < steps < 11
    [line] = [line for line in done.stderr.splitlines() if "warning: gradients-00001.hvg" in line]
    assert f"bytes are damaged; {steps + 1} steps are used" in line  # the first of which is not replayed
    assert document["recorded"]["messages"] == 2


def test_a_type_that_pytorch_lacks_is_a_one_line_error(hvscale: Run, own_recording: Path) -> None:
    change(own_recording, b"TNSR", dtype="float12")
    done = hvscale("replay", own_recording)
    assert done.returncode == 2
    assert "has type float12, which PyTorch 2." in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_recording_without_whole_steps_is_a_one_line_error(hvscale: Run, own_recording: Path) -> None:
    for path in (own_recording / "hvprof").glob("gradients-*.hvg"):
        (first, *others) = [payload for kind, payload in frames(path) if kind == b"STEP"]
        assert len(others) > 9
        head = [frame(kind, payload) for kind, payload in frames(path) if kind != b"STEP"]
        path.write_bytes(b"".join((*head, frame(b"STEP", first))))
    done = hvscale("replay", own_recording)
    assert done.returncode == 2
    assert "no rank recorded two whole steps: the job must train for at least three steps" in done.stderr
    assert done.stderr.count("\n") == 1


def test_different_recordings_on_two_ranks_are_a_one_line_error(
    hvscale: Run, program: Callable[[str], Path], recorded: Path, own_recording: Path
) -> None:
    change(own_recording, b"TNSR", bytes=3960)
    script = f"""
import os, sys
folder = {str(recorded)!r} if os.environ["OMPI_COMM_WORLD_RANK"] == "0" else {str(own_recording)!r}
os.execvp("hvscale", ["hvscale", "replay", folder])
"""
    done = hvscale("launch", "-np", 2, "--", "python", program(script))
    assert done.returncode == 3
    assert "hvscale: rank 1 read a recording with other tensors than rank 0" in done.stderr + done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a profile."""
    folder = tmp_path_factory.mktemp("unprofiled")
    assert run_hvscale(folder, "launch", "--run", "plain", "--", "true").returncode == 0
    return folder / "plain"


@pytest.mark.parametrize("option", ["--csv=table.csv", "--bins=pow2", "--set=cycle_time=1", "-np=2"])
def test_a_rank_of_another_command_refuses_options_of_a_launch(plain: Path, option: str) -> None:
    words = option.split("=", 1)
    done = run_hvscale(plain.parent, "replay", "plain", *words, HVSCALE_RUN=str(plain), HVSCALE_NP="2")
    flag = words[0].replace("-np", "--np")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"hvscale: {flag}: another command has started this replay as one of its ranks: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nothing"], "nothing is not a folder: give the folder of a run"),
        (["plain"], "holds no gradients: record them with `hvscale profile --gradients`"),
        (["plain", "--compute", "guess"], "--compute guess: give auto, sleep or spin"),
        (["plain", "--steps", "0"], "--steps 0: give a number from 1 to"),
        (["plain", "--steps", "many"], "--steps many: it is not a whole number"),
        (["plain", "-np", "0"], "--np 0: give a number from 1 to"),
        (["plain", "-np", "many"], "--np many: it is not a whole number"),
        (["plain", "--bins", "some"], "--bins some: some is not a size"),
    ],
)
def test_an_invalid_request_is_one_line(plain: Path, arguments: list[str], line: str) -> None:
    done = run_hvscale(plain.parent, "replay", *arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
