"""`hvscale bench experiment` with settings, replays and predictions: their figures agree with the
runs, and what this machine lacks is named.
"""

import json
import math
from pathlib import Path
from statistics import fmean

import pytest

from hvscale.core.run_folder import RunFolder
from tests.conftest import Run, write_program

# Writes its steps and its speed as `hvscale train` does.
PROGRAM = """
import horovod.torch as hvd, json, os, time, torch
from pathlib import Path

hvd.init()
model = torch.nn.Sequential(*[torch.nn.Linear(100, 100, bias=False) for _ in range(2)])
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
images, steps = hvd.size(), []
for step in range(8):
    began = time.monotonic()
    optimizer.zero_grad()
    loss = model(torch.ones(1, 100)).sum()
    loss.backward()
    optimizer.step()
    steps.append({"images": images, "seconds": time.monotonic() - began, "loss": float(loss)})
if hvd.rank() == 0:
    run = Path(os.environ["HVSCALE_RUN"])
    (run / "steps.jsonl").write_text("".join(json.dumps(step) + "\\n" for step in steps))
    speed = images * len(steps) / sum(step["seconds"] for step in steps)
    (run / "result.json").write_text(json.dumps({"images_per_second": speed, "np": hvd.size()}))
"""
TRAIN = """
command = ["python", "job/program.py"]
program = "edsr"
"""
SCALING = f"""
title = "Scaling"

[small.measured]
measure = "settings"
{TRAIN}
settings = ["mpi", "mpi-opt", "nccl"]
set = {{ mpi-opt = ["allreduce_algorithm=ring"] }}
np = [1, 2]
repeat = 2

[small.replayed]
measure = "replay"
{TRAIN}
settings = ["mpi"]
np = [1, 2]
steps = 6
repeat = 1

[small.predicted]
measure = "predict"
program = "edsr"
of = "replayed"
alone = "measured"
np = [4, 512]

[[statements]]
claim = "It trains faster"
kind = "faster"
of = {{ settings = "mpi-opt" }}
than = {{ settings = "mpi" }}
where = {{ operation = "throughput", source = "measured", np = 2 }}

[[statements]]
claim = "It scales better"
kind = "higher-share"
of = {{ settings = "mpi-opt" }}
than = {{ settings = "mpi" }}
where = {{ operation = "efficiency", source = "measured" }}

[[statements]]
claim = "It is faster than NCCL"
kind = "faster"
of = {{ settings = "mpi-opt" }}
than = {{ settings = "nccl" }}
where = {{ operation = "throughput", np = 2 }}

[[statements]]
claim = "CUDA IPC is faster"
kind = "faster"
of = {{ settings = "mpi-opt", device = "cuda" }}
than = {{ settings = "mpi", device = "cuda" }}
where = {{ operation = "throughput" }}

[[statements]]
claim = "A cache is hit"
kind = "share-above"
where = {{ operation = "cache-hits", settings = "mpi", source = "measured", np = 2 }}
percent = 50

[[statements]]
claim = "Efficiency falls"
kind = "share-below"
where = {{ operation = "efficiency", source = "predicted" }}
percent = 100
"""


def test_settings_are_measured_replayed_and_predicted(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(SCALING)
    (tmp_path / "job").mkdir()
    write_program(tmp_path / "job", PROGRAM)
    (tmp_path / "numbers.py").write_text("")  # a module in the working folder replaces none of Python's
    command = ("bench", "experiment", "experiment.toml", "--run", "scaling", "--json")
    done = hvscale(*command)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    folder = tmp_path / "scaling"
    faster, better, nccl, ipc, cache, falls = document["statements"]

    speed = {
        (settings, np, repeat): json.loads(
            (folder / f"measured/host-{settings}-np-{np}-repeat-{repeat}/result.json").read_text()
        )["images_per_second"]
        for settings in ("mpi", "mpi-opt")
        for np in (1, 2)
        for repeat in (1, 2)
    }
    ratios = [speed["mpi", 2, repeat] / speed["mpi-opt", 2, repeat] for repeat in (1, 2)]
    [comparison] = faster["comparisons"]
    assert comparison["percent"] == pytest.approx(100 * (1 - math.prod(ratios) ** 0.5))
    points = [
        100
        * (
            speed["mpi-opt", 2, repeat] / speed["mpi-opt", 1, repeat]
            - speed["mpi", 2, repeat] / speed["mpi", 1, repeat]
        )
        / 2
        for repeat in (1, 2)
    ]
    [comparison] = better["comparisons"]
    assert comparison["percent"] == pytest.approx(fmean(points))

    assert nccl["verdict"] == ipc["verdict"] == "cannot be tested here"
    assert "built without NCCL" in nccl["reason"]
    assert "GPUs" in ipc["reason"]
    [comparison] = cache["comparisons"]
    assert 0 < comparison["percent"] < 100

    settings = json.loads((folder / "measured/bench-settings.json").read_text())
    assert settings["schema"] == "hvscale/bench-settings/1"
    assert settings["unavailable"].keys() == {"nccl"}
    assert [(row["settings"], row["np"]) for row in settings["rows"]] == [
        ("mpi", 1),
        ("mpi", 2),
        ("mpi-opt", 1),
        ("mpi-opt", 2),
    ]
    [profile] = settings["profiles"]
    assert Path(profile["run_before"]).name == "host-mpi-np-2-repeat-2"
    assert Path(profile["run_after"]).name == "host-mpi-opt-np-2-repeat-2"
    ring = RunFolder(folder / "measured/host-mpi-opt-np-2-repeat-1").read()
    assert ring.env_asked["OMPI_MCA_coll_tuned_allreduce_algorithm"] == "4"

    predicted = json.loads((folder / "predicted/bench-predict.json").read_text())
    words = predicted["commands"]["mpi"]
    at = words.index("--run")
    assert (Path(words[at + 1]) / "prediction.html").exists()
    by_hand = hvscale(*words[1:at], *words[at + 2 :])
    assert by_hand.returncode == 0, by_hand.stderr
    rows = {row["np"]: row for row in json.loads(by_hand.stdout)["rows"] if row["source"] == "predicted"}
    assert rows.keys() == {4, 512}
    shares = {round(one["percent"], 6) for one in falls["comparisons"]}
    assert shares == {round(100 * row["scaling_efficiency"], 6) for row in rows.values()}
    html = (folder / "bench-experiment.html").read_text()
    assert "Scaling efficiency: edsr" in html
    assert "edsr: predicted from replayed" in html

    records = {path: path.read_bytes() for path in folder.glob("*/*/run.json")}
    assert len(records) == 8 + 1 + 2
    again = hvscale(*command)
    assert again.returncode == 0, again.stderr
    assert {path: path.read_bytes() for path in folder.glob("*/*/run.json")} == records
    assert json.loads(again.stdout)["statements"] == document["statements"]


FAILING = """
title = "Fails"
[small.replayed]
measure = "replay"
program = "none"
command = ["python", "-c", "raise SystemExit(5)"]
settings = ["mpi"]
np = [1]
repeat = 1
"""


def test_a_recording_that_failed_is_kept_and_made_again(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(FAILING)
    for attempt in (1, 2):
        done = hvscale("bench", "experiment", "experiment.toml", "--run", "failing")
        assert done.returncode == 3, done.stderr
        found = sorted(path.parent.name for path in tmp_path.glob("failing/replayed/*/run.json"))
        assert found == ["recording-mpi", "recording-mpi-attempt-2"][:attempt]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"mpi-opt", "nccl"]', '"mpi-optt"]', "set: mpi-opt is not one of the settings of this measurement"),
        ('["mpi"]', '["mpy"]', "small.replayed: settings: mpy: unknown settings; did you mean mpi?"),
        ('["allreduce_algorithm=ring"]', '["allreduce=ring"]', "small.measured: --set allreduce=ring: unknown knob"),
        ('settings = ["mpi"]', 'settings = ["nccl"]', "small.replayed: nccl: this job's Horovod is built without NCCL"),
        (
            'of = "replayed"',
            'of = "measured"',
            "small.predicted: of: measured is not a replay of this part; give replayed",
        ),
    ],
)
def test_an_invalid_entry_is_rejected_before_anything_starts(
    hvscale: Run, tmp_path: Path, before: str, after: str, message: str
) -> None:
    assert before in SCALING
    (tmp_path / "experiment.toml").write_text(SCALING.replace(before, after))
    done = hvscale("bench", "experiment", "experiment.toml", "--run", "wrong")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (tmp_path / "wrong").exists()
