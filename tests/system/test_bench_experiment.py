"""`hvscale bench experiment` with real ranks: statements agree with measurements, and studies are
resumed.
"""

import csv
import json
import math
from pathlib import Path

import pytest

from tests.conftest import Run

TINY = """
title = "Tiny"

[small.exchange]
measure = "param-server"
backend = ["openmpi"]
workers = [1]
operation = ["broadcast"]
bytes = "6001"
repeat = 1
iterations = 2

[small.sort]
measure = "app"
program = "merge_sort"
flags = ["-O2"]
np = [1]
size = { samples = 10007 }
counters = false
repeat = 1

[small.sums]
measure = "collective"
collective = "allreduce"
backend = ["openmpi"]
np = [2]
sizes = "8,1M"
iterations = "4"
warmup = "1"
in_place = "in"
repeat = 2

[[statements]]
claim = "More bytes take longer"
kind = "time-grows"
where = { operation = "allreduce" }
along = "bytes"
"""
MORE = """
[[statements]]
claim = "NCCL is faster than Open MPI"
kind = "faster"
of = { backend = "nccl" }
than = { backend = "openmpi" }
"""


def test_statements_agree_with_measurements_and_a_study_is_resumed(hvscale: Run, tmp_path: Path) -> None:
    file, folder = tmp_path / "experiment.toml", tmp_path / "tiny"
    file.write_text(TINY)
    command = ("bench", "experiment", file, "--run", "tiny")
    first = hvscale(*command)
    assert first.returncode == 0, first.stderr
    assert "More bytes take longer: " in first.stdout
    records = {path: path.read_bytes() for path in folder.glob("*/*/**/run.json")}
    assert len(records) == 4

    file.write_text(TINY + MORE)
    again = hvscale(*command, "--json", "--csv", "rows.csv")
    assert again.returncode == 0, again.stderr
    assert {path: path.read_bytes() for path in folder.glob("*/*/**/run.json")} == records
    document = json.loads(again.stdout)
    assert document == json.loads((folder / "bench-experiment.json").read_text())
    assert (document["schema"], document["state"]) == ("hvscale/bench-experiment/2", "finished")
    assert [(one["name"], one["state"]) for one in document["measurements"]] == [
        ("exchange", "finished"),
        ("sort", "finished"),
        ("sums", "finished"),
    ]
    grows, nccl = document["statements"]
    rounds = [json.loads(path.read_text())["rows"] for path in sorted(folder.glob("sums/*/bench.json"))]
    ratios = [{row["bytes"]: row["seconds"] for row in rows} for rows in rounds]
    mean = (ratios[0][1 << 20] / ratios[0][8] * ratios[1][1 << 20] / ratios[1][8]) ** 0.5
    [comparison] = grows["comparisons"]
    assert comparison["percent"] == pytest.approx(100 * (mean - 1))
    assert (grows["verdict"] == "holds") == (comparison["percent_low"] > 0)
    assert (nccl["verdict"], nccl["comparisons"]) == ("inconclusive", [])
    with (tmp_path / "rows.csv").open() as stream:
        assert [(row["claim"], float(row["percent"])) for row in csv.DictReader(stream)] == [
            ("More bytes take longer", comparison["percent"])
        ]
    assert "More bytes take longer" in (folder / "bench-experiment.html").read_text()

    file.write_text(TINY.replace('"8,1M"', '"8,2M"'))
    other = hvscale(*command)
    assert other.returncode == 2
    assert other.stderr.endswith("holds another study: its back ends or sizes differ; give another folder with --run\n")


TABLE = """
schema = "hvscale/collectives/1"
mpi = "openmpi"
[[rule]]
operation = "broadcast"
np = 2
ranks_per_node = 2
bytes_min = 1000
algorithm = "chain"
"""
# Broadcasts its parameters, and writes its speed as `hvscale train` does.
TRAINING = """
import json, os, time
from pathlib import Path
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
own, total = np.ones(1 << 16, np.float32), np.empty(1 << 16, np.float32)
world.Bcast(own)
began = time.monotonic()
for step in range(5):
    world.Allreduce(own, total)
speed = 5 * world.size / (time.monotonic() - began)
if world.rank == 0:
    result = {"images_per_second": speed, "np": world.size}
    Path(os.environ["HVSCALE_RUN"], "result.json").write_text(json.dumps(result))
"""
WITH_A_TABLE = """
title = "Broadcasts"

[small.sums]
measure = "collective"
collective = "broadcast"
backend = ["openmpi", "gloo"]
collectives = ["library", "table"]
np = [2]
sizes = "4K"
iterations = "4"
in_place = "in"
repeat = 1

[small.training]
measure = "command"
program = "edsr"
command = ["python", "train.py"]
collectives = ["library", "table"]
np = 2
repeat = 2

[[statements]]
claim = "A message takes less time"
kind = "faster"
of = { collectives = "table" }
than = { backend = ["openmpi", "gloo"], collectives = "library" }
where = { operation = "broadcast", bytes = "4K" }

[[statements]]
claim = "The parameters are there earlier"
kind = "faster"
of = { collectives = "table" }
than = { collectives = "library" }
where = { program = "edsr", operation = "broadcast" }

[[statements]]
claim = "It trains faster"
kind = "faster"
of = { collectives = "table" }
than = { collectives = "library" }
where = { program = "edsr", operation = "throughput" }
"""


def test_a_command_and_a_collective_are_compared_with_and_without_a_table(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(WITH_A_TABLE)
    (tmp_path / "table.toml").write_text(TABLE)
    (tmp_path / "train.py").write_text(TRAINING)
    command = ("bench", "experiment", "experiment.toml", "--collectives", "table.toml", "--run", "tables", "--json")
    done = hvscale(*command)
    assert done.returncode == 0, done.stderr
    runs = {path.parent for path in (tmp_path / "tables").glob("**/run.json")}
    assert len(runs) == 3 + 4
    assert {run.relative_to(tmp_path / "tables").parts[1] for run in runs if (run / "collectives.table").exists()} == {
        "np-2-float32-host-table-repeat-1",
        "host-table-repeat-1",
        "host-table-repeat-2",
    }

    document = json.loads(done.stdout)
    message, parameters, trains = [row["comparisons"] for row in document["statements"]]
    assert {one["what"] for one in message} == {
        "table against library, openmpi",
        "openmpi, table against gloo, library",
    }
    measured: dict[tuple[str, str], list[float]] = {}
    for name in ("library", "table"):
        for repeat in (1, 2):
            run = tmp_path / f"tables/training/host-{name}-repeat-{repeat}"
            speed = json.loads((run / "result.json").read_text())["images_per_second"]
            measured.setdefault((name, "throughput"), []).append(1 / speed)
            breakdown = hvscale("breakdown", run, "--json")
            rows = [row for row in json.loads(breakdown.stdout)["rank_rows"] if row["operation"] == "broadcast"]
            of_ranks = [sum(row["seconds"] for row in rows if row["rank"] == rank) for rank in range(2)]
            measured.setdefault((name, "broadcast"), []).append(max(of_ranks))
    for [comparison], operation in ((parameters, "broadcast"), (trains, "throughput")):
        ratio = math.prod(measured["table", operation]) / math.prod(measured["library", operation])
        assert comparison["percent"] == pytest.approx(100 * (1 - ratio**0.5))
        assert comparison["what"] == "table against library"

    training = json.loads((tmp_path / "tables/training/bench-command.json").read_text())
    assert training["schema"] == "hvscale/bench-command/1"
    means = {(row["name"], row["operation"]): row["seconds"] for row in training["rows"]}
    assert {operation for _, operation in means} >= {"job", "throughput", "broadcast", "allreduce"}
    for (name, operation), (one, other) in measured.items():
        assert means[f"host, {name}", operation] == pytest.approx((one * other) ** 0.5)

    (tmp_path / "copy.toml").write_text(TABLE)
    again = hvscale(*(word.replace("table.toml", "copy.toml") for word in command))
    assert again.returncode == 0, again.stderr
    assert {path.parent for path in (tmp_path / "tables").glob("**/run.json")} == runs
    assert json.loads(again.stdout)["statements"] == document["statements"]

    (tmp_path / "table.toml").write_text(TABLE.replace("1000", "2000"))
    rejected = hvscale(*command)
    assert rejected.returncode == 2
    assert "holds another study: its collectives differs" in rejected.stderr


WRONG = """
title = "A stencil whose walls are not sent"

[small.stencil]
measure = "app"
program = "stencil"
flags = ["-include lost.h"]
np = [2]
size = { x = 7, y = 5, z = 9, steps = 6 }
repeat = 1

[small.sort]
measure = "app"
program = "merge_sort"
flags = ["-O2"]
np = [1]
size = { samples = 10007 }
counters = false
repeat = 1

[[statements]]
claim = "Sorting takes less time than nothing"
kind = "faster"
of = { program = "merge_sort" }
than = { program = "stencil" }
"""


def test_a_wrong_result_is_excluded_and_other_measurements_continue(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "lost.h").write_text(
        "#include <mpi.h>\n#define MPI_Isend(values, count, ...) MPI_Isend(values, 0, __VA_ARGS__)\n"
    )
    (tmp_path / "experiment.toml").write_text(WRONG)
    done = hvscale("bench", "experiment", "experiment.toml", "--run", "wrong", "--json", "--csv", "rows.csv")
    assert done.returncode == 4, done.stderr
    document = json.loads(done.stdout)
    assert document["state"] == "failed"
    stencil, sort = document["measurements"]
    assert (stencil["state"], sort["state"], sort["problem"]) == ("failed", "finished", None)
    assert "a wrong result: its cells differ" in stencil["problem"]
    [statement] = document["statements"]
    assert (statement["verdict"], statement["comparisons"]) == ("inconclusive", [])
    assert (tmp_path / "rows.csv").read_text().startswith("what,percent,")
