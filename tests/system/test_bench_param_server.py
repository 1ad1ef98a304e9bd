"""`hvscale bench param-server` with real ranks: correct values, detected errors, and resuming."""

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Run, needs_mpich

SMALL = ("--bytes", "6001", "-n", "2", "--run", "bench", "--json")
# Adds one to the sixth element that the server receives from the second worker.
WRONG_GATHER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

typedef int (*gather)(const void *, int, void *, void *, int, void *, int, void *);

int MPI_Gather(const void *send, int sent, void *type, void *receive, int count, void *kind, int root, void *communicator)
{
    void *library = dlopen("libmpi.so.40", RTLD_LAZY | RTLD_NOLOAD);
    gather profiled;
    *(void **)&profiled = dlsym(library, "PMPI_Gather");
    int status = profiled(send, sent, type, receive, count, kind, root, communicator);
    if (atoi(getenv("OMPI_COMM_WORLD_RANK")) == root)
        ((float *)receive)[2 * count + 5] += 1;
    return status;
}
"""


def document_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert (document["schema"], document["state"]) == ("hvscale/bench-param-server/2", "finished")
    return document


def test_document_agrees_with_rank_measurements_and_a_study_is_resumed(
    open_page: Callable[..., Page], hvscale: Run, tmp_path: Path
) -> None:
    command = ("bench", "param-server", "--backend", "openmpi", *SMALL)
    first = document_of(hvscale(*command, "--workers", "2", "--repeat", "1"))
    folder = tmp_path / "bench"
    records = {path: path.read_bytes() for path in folder.glob("*/run.json")}
    assert len(records) == len(first["runs"]) == 3
    document = document_of(hvscale(*command, "--workers", "1,2", "--repeat", "1", "--csv", "rows.csv"))
    assert {path: path.read_bytes() for path in records} == records
    assert document == json.loads((folder / "bench-param-server.json").read_text())
    # 6001 bytes hold 1500 float32 values; the last byte is not used.
    assert (document["bytes"], document["libraries"]["openmpi"][:10]) == (6000, "Open MPI v")
    measured = [(row["operation"], row["workers"], row["starts"], row["samples"]) for row in document["rows"]]
    assert measured == [
        ("broadcast", 1, 1, 2),
        ("gather", 1, 1, 2),
        ("broadcast", 2, 1, 2),
        ("gather", 2, 1, 2),
        ("allreduce", 2, 1, 2),
    ]
    for run in document["runs"]:
        written = [json.loads(line) for line in (folder / run["folder"] / "bench.jsonl").read_text().splitlines()]
        assert (run["seconds"], run["wrong"]) == (written[1]["seconds"], 0)
        np = run["workers"] + (run["operation"] != "allreduce")
        assert len(written[0]["hosts"]) == json.loads((folder / run["folder"] / "run.json").read_text())["np"] == np
    with (tmp_path / "rows.csv").open() as stream:
        assert [row["seconds"] for row in csv.DictReader(stream)] == [str(row["seconds"]) for row in document["rows"]]
    extremes = {(one["operation"], one["workers"]) for one in document["best_and_worst"]}
    assert extremes == {("broadcast", None), ("gather", None)}
    assert [exchange["workers"] for exchange in document["step_exchanges"]] == [2]

    page = open_page(folder / "bench-param-server.html", width=1000)
    for chart, points in (("#broadcast", 2), ("#gather", 2), ("#allreduce", 1)):
        expect(page.locator(f"{chart} .points path")).to_have_count(points)


@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpich", marks=needs_mpich)])
def test_every_operation_is_correct_on_other_libraries(hvscale: Run, backend: str) -> None:
    command = ("bench", "param-server", "--backend", backend, "--workers", "2", "--repeat", "1", "-d", "float16")
    document = document_of(hvscale(*command, *SMALL))
    assert [(run["operation"], run["wrong"]) for run in document["runs"]] == [
        ("broadcast", 0),
        ("gather", 0),
        ("allreduce", 0),
    ]


def test_wrong_values_are_detected_and_excluded(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.c").write_text(WRONG_GATHER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "wrong.so", "wrong.c", "-ldl"], cwd=tmp_path, check=True)
    command = ("bench", "param-server", "--backend", "openmpi", "--workers", "2", "--operation", "broadcast,gather")
    done = hvscale(*command, *SMALL, "--repeat", "2", "--env", f"LD_PRELOAD={tmp_path / 'wrong.so'}")
    assert done.returncode == 4, done.stderr
    document = json.loads(done.stdout)
    assert [(run["operation"], run["repeat"], run["wrong"]) for run in document["runs"]] == [
        ("broadcast", 1, 0),
        ("gather", 1, 1),
        ("broadcast", 2, 0),
    ]
    assert [row["operation"] for row in document["rows"]] == ["broadcast"]
    # The second worker's elements start after 1500 of the server and 1500 of the first worker.
    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith("hvscale: gather, openmpi, host, workers 2: wrong values in 6000 bytes: rank 0 got ")
    assert " in element 3005, " in last_line
    assert last_line.endswith("; wrong elements: 1")
