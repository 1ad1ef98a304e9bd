"""`hvscale replay` of recorded jobs: its messages, and its use with other commands."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, Run

SENT = 2 * 1000 * 4  # bytes of the gradients
PROGRAM = """
import torch, horovod.torch as hvd
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


MARKED = PROGRAM.replace("import torch,", "from hvscale import profiling\nimport torch,").replace(
    "    optimizer.zero_grad()", "    profiling.step()\n    optimizer.zero_grad()"
)
LABEL = "fused messages only, fixed pattern"


@pytest.fixture
def recorded(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> Path:
    done = hvscale("profile", "--gradients", "-np", 2, "--run", "recorded", "--", "python", program(PROGRAM))
    assert done.returncode == 0, done.stderr
    return tmp_path / "recorded"


def test_a_replay_sends_the_gradients_of_each_step(hvscale: Run, recorded: Path, tmp_path: Path) -> None:
    done = hvscale(
        *("profile", "-np", 3, "--run", "replayed", "--bins", "1024", "--json", "--"),
        *("hvscale", "replay", recorded, "--steps", 7),
    )
    assert done.returncode == 0, done.stderr
    assert "replay: 7 steps, median " in done.stderr
    # Horovod's own negotiation messages are smaller.
    (large,) = [
        row for row in json.loads(done.stdout)["rows"] if (row["operation"], row["bytes_min"]) == ("allreduce", 1025)
    ]
    assert large["bytes"] == 3 * 7 * SENT
    steps = (tmp_path / "replayed/steps.jsonl").read_text().splitlines()
    assert len(steps) == 7
    assert all(0 <= json.loads(line)["communication_seconds"] < json.loads(line)["seconds"] for line in steps)


def test_a_replay_starts_its_ranks_and_runs_under_mpirun(hvscale: Run, recorded: Path, tmp_path: Path) -> None:
    done = hvscale("replay", recorded, "--run", "replayed", "--compute", "spin")
    assert done.returncode == 0, done.stderr
    assert "[0] replay: 11 steps, median " in done.stdout
    assert "; recorded on 2 ranks: " in done.stdout
    record = json.loads((tmp_path / "replayed/run.json").read_text())
    assert record["np"] == 2
    plain = subprocess.run(
        [
            *(str(PROGRAMS / "mpirun"), "--allow-run-as-root", "--map-by", "slot:OVERSUBSCRIBE", "-np", "2"),
            *(str(PROGRAMS / "hvscale"), "replay", str(recorded), "--steps", "3"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert plain.returncode == 0, plain.stderr
    assert "replay: 3 steps" in plain.stdout


def test_a_replay_of_hvscale_train_reports_images(hvscale: Run) -> None:
    done = hvscale(
        *("profile", "--gradients", "-np", 2, "--run", "trained", "--"),
        *("hvscale", "train", "edsr", "--n-resblocks", 1, "--n-feats", 8),
        *("--batch-size", 2, "--patch-size", 8, "--steps", 8),
    )
    assert done.returncode == 0, done.stderr
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


def test_a_run_without_gradients_is_replayed_from_its_messages(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    done = hvscale("profile", "-np", 2, "--run", "messages", "--", "python", program(MARKED))
    assert done.returncode == 0, done.stderr
    replayed = hvscale("replay", "messages", "--steps", 3)
    assert replayed.returncode == 0, replayed.stderr
    warning = f"hvscale: warning: {LABEL}: messages holds no gradients, so the messages of a typical step are used"
    assert replayed.stderr.count(warning) == 1
    assert replayed.stdout.strip().endswith(LABEL)
    # Horovod would fuse two messages of the same cycle: it does not, whatever the settings.
    for more in ([], ["--set", "fusion_threshold=16M"]):
        profiled = hvscale(
            *(
                "profile",
                "-np",
                3,
                *more,
                "--bins",
                "1024",
                "--json",
                "--",
                "hvscale",
                "replay",
                "messages",
                "--steps",
                6,
            )
        )
        assert profiled.returncode == 0, profiled.stderr
        exported = hvscale("trace", "messages", "--chakra", "trace")
        assert exported.returncode == 0, exported.stderr
        messages = int(exported.stderr.split()[-2])
        assert large_all_reduces(profiled.stdout) == (3 * 6 * messages, 3 * 6 * SENT)
        assert LABEL in profiled.stderr


def test_a_run_without_gradients_and_steps_is_refused(hvscale: Run, program: Callable[[str], Path]) -> None:
    done = hvscale("profile", "-np", 2, "--run", "messages", "--", "python", program(PROGRAM))
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


def test_different_recordings_on_two_ranks_are_a_one_line_error(
    hvscale: Run, program: Callable[[str], Path], recorded: Path
) -> None:
    other = PROGRAM.replace("(10, 100", "(10, 99")
    done = hvscale("profile", "--gradients", "-np", 2, "--run", "other", "--", "python", program(other))
    assert done.returncode == 0, done.stderr
    script = f"""
import os, sys
folder = {str(recorded)!r} if os.environ["OMPI_COMM_WORLD_RANK"] == "0" else "other"
os.execvp("hvscale", ["hvscale", "replay", folder])
"""
    done = hvscale("launch", "-np", 2, "--", "python", program(script))
    assert done.returncode == 3
    assert "hvscale: rank 1 read a recording with other tensors than rank 0" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nothing"], "nothing is not a folder: give the folder of a run"),
        (["plain"], "holds no gradients: record them with `hvscale profile --gradients`"),
        (["plain", "--compute", "guess"], "--compute guess: give sleep or spin"),
        (["plain", "--steps", "0"], "--steps 0: give a number from 1 to"),
        (["plain", "--steps", "many"], "--steps many: it is not a whole number"),
        (["plain", "-np", "0"], "--np 0: give a number from 1 to"),
    ],
)
def test_an_invalid_request_is_one_line(hvscale: Run, arguments: list[str], line: str) -> None:
    assert hvscale("launch", "--run", "plain", "--", "true").returncode == 0
    done = hvscale("replay", *arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
