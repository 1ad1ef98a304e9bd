"""The parts of `hvscale check-gpu` that need neither ranks nor a GPU."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.bench.gpu_check import commands
from hvscale.bench.gpu_check.check import find_machine, select
from hvscale.bench.gpu_check.chips import CHIPS, chip_of
from hvscale.bench.gpu_check.commands import CommandFailedError, TimeLimitError
from hvscale.bench.gpu_check.document import CheckLine, GpuCheckDocument, Machine, StepRun
from hvscale.bench.gpu_check.output import list_rows, rows
from hvscale.bench.gpu_check.page import page
from hvscale.bench.gpu_check.rank_side.requests import VARIANTS
from hvscale.bench.gpu_check.step import OWN_HOST, StepContext, all_steps, describe_sharing
from hvscale.bench.gpu_check.steps._throughput import add_speed, add_speed_up, read_results
from hvscale.bench.gpu_check.steps.nccl_tests import bus_bandwidth
from hvscale.core.documents import from_json, to_json
from hvscale.core.errors import RequestError
from hvscale.launch import flavours

MINUTES = 20
MACHINE = Machine(
    python="3.12.3",
    torch="2.11.0+cu130",
    cuda="13.0",
    cudnn=91000,
    nccl=(2, 28, 9),
    triton="3.6.0",
    compiler="/usr/bin/cc",
    horovod="0.28.1",
    nccl_in_horovod=True,
    mpi4py="4.1.2",
    gpus=["NVIDIA H100 80GB HBM3"],
    gpu_memory_bytes=[80 << 30],
    compute_capability=[(9, 0)],
)
NCCL_TESTS = """
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    67108864      16777216     float     sum      -1    290.8  230.77  230.77      0    289.1  232.13  232.13      0
# Out of bounds values : 0 OK
"""


def context(folder: Path, machine: Machine = MACHINE, gpu: bool = True) -> tuple[StepContext, list[CheckLine]]:
    lines: list[CheckLine] = []
    step = next(one for one in all_steps() if one.name == "throughput-edsr")
    return StepContext(step, 60, machine, "cuda" if gpu else "cpu", "openmpi", folder, lines.append), lines


def test_all_steps_fit_into_twenty_minutes() -> None:
    assert sum(step.limit_seconds for step in all_steps()) <= 60 * MINUTES
    assert len({step.order for step in all_steps()}) == len(all_steps())
    assert list_rows(all_steps())[-1][1].endswith(" min")


def test_parts_run_in_their_order_whatever_the_order_given() -> None:
    assert [step.name for step in select(["leftovers,environment", "devices"])] == [
        "environment",
        "devices",
        "leftovers",
    ]
    assert select([]) == all_steps()
    with pytest.raises(RequestError, match="--only horovod-ncl: unknown part; did you mean horovod-nccl"):
        select(["environment,horovod-ncl"])


def test_without_a_gpu_one_line_names_the_dry_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(RequestError, match=r"no NVIDIA GPU here.*--dry-run"):
        find_machine(dry_run=False)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835.5e12),
        ("NVIDIA H200", 989.5e12),
        ("NVIDIA H200 NVL", 835.5e12),
        ("NVIDIA GH200 480GB", 989.5e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_peaks_of_chips(name: str, peak: float | None) -> None:
    chip = chip_of(name)
    assert (chip.peak_flops if chip else None) == peak
    assert all(one.source for one in CHIPS)


@given(st.text())
def test_any_name_of_a_gpu_is_a_chip_or_none(name: str) -> None:
    assert chip_of(name) is None or chip_of(name) in CHIPS


def test_ranks_that_share_a_gpu_get_what_their_nccl_needs(tmp_path: Path) -> None:
    old, _ = context(tmp_path)
    assert str(OWN_HOST) in old.sharing_variables(2)["PYTHONPATH"].split(os.pathsep)
    assert "NCCL_HOSTID" in describe_sharing(MACHINE)
    new_machine = MACHINE.model_copy(update={"nccl": (2, 30, 7)})
    new, _ = context(tmp_path, new_machine)
    assert new.sharing_options(2) == ["--env", "NCCL_MULTI_RANK_GPU_ENABLE=1"]
    assert "NCCL_MULTI_RANK_GPU_ENABLE" in describe_sharing(new_machine)
    two = MACHINE.model_copy(update={"gpus": ["NVIDIA H200"] * 2})
    assert context(tmp_path, two)[0].sharing_variables(2) == {}
    assert context(tmp_path, two)[0].sharing_variables(3) != {}
    assert context(tmp_path, gpu=False)[0].sharing_variables(2) == {}


def test_each_rank_is_a_host_of_its_own_and_the_sites_module_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['SITE'] = 'kept'")
    program = "import os, json; print(json.dumps([os.environ.get(name) for name in ('NCCL_HOSTID', 'SITE')]))"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sharing = context(tmp_path)[0].sharing_variables(2)
    for variables in flavours.all_rank_variables():
        inherited = {name: value for name, value in os.environ.items() if not name.endswith(("_RANK", "_PROCID"))}
        done = commands.run(
            [sys.executable, "-c", program],
            output=tmp_path / variables.rank,
            deadline=time.monotonic() + 60,
            environment={**inherited, **sharing, variables.rank: "1"},
        )
        assert json.loads(done.stdout) == ["hvscale-rank-1", "kept"]


def test_a_dry_run_never_holds_anything(tmp_path: Path) -> None:
    dry, lines = context(tmp_path, gpu=False)
    dry.hold("right", True)
    dry.hold("wrong", False, reason="because")
    dry.hold_timing("fast", True, "1 s")
    dry.hold_timing("slow", False, "9 s")
    assert dry.needs_gpu("NCCL", "there is none")
    assert [line.status for line in lines] == ["dry run", "failed", "needs a GPU", "needs a GPU", "needs a GPU"]
    real, lines = context(tmp_path)
    real.hold("right", True, seconds=1.5)
    real.hold_timing("slow", False, "9 s")
    assert not real.needs_gpu("NCCL", "there is none")
    assert [(line.status, bool(line.reason)) for line in lines] == [("held", False), ("failed", True)]
    assert lines[0].figures == {"seconds": 1.5}


def test_a_failed_command_names_its_last_lines(tmp_path: Path) -> None:
    program = "import sys; print('out'); print('first\\nlast', file=sys.stderr); sys.exit(7)"
    with pytest.raises(CommandFailedError, match="ended with status 7") as failed:
        commands.run([sys.executable, "-c", program], output=tmp_path / "one", deadline=time.monotonic() + 60)
    assert failed.value.last_lines == ["first", "last"]
    assert (tmp_path / "one.out").read_text() == "out\n"
    with pytest.raises(CommandFailedError, match="cannot be started"):
        commands.run(["/no/such/program"], output=tmp_path / "two", deadline=time.monotonic() + 60)


def test_a_command_is_asked_to_end_at_the_deadline(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('cleaned up'));"
        "print('ready', flush=True); time.sleep(1200)"
    )
    with pytest.raises(TimeLimitError, match="time was over") as failed:
        commands.run([sys.executable, "-c", program], output=tmp_path / "one", deadline=time.monotonic() + 5)
    assert failed.value.last_lines == ["cleaned up"]


def test_nccl_tests_output() -> None:
    assert bus_bandwidth(NCCL_TESTS) == 230.77
    assert bus_bandwidth("nccl-tests: no device") is None


@given(st.text())
def test_any_output_of_nccl_tests_is_a_number_or_none(text: str) -> None:
    assert isinstance(bus_bandwidth(text), float | None)


def test_throughputs_become_lines(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    fp32, bf16 = VARIANTS[0].name, VARIANTS[2].name
    found = [
        {"forward_flops": 1e11},
        {"name": bf16, "problem": "RuntimeError: no"},
        {
            "name": fp32,
            "images_per_second": [90.0, 110.0, 100.0],
            "loss": 1.0,
            "memory_bytes": 1 << 30,
            "preparation_seconds": 1.0,
        },
    ]
    results.write_text("".join(json.dumps(line) + "\n" for line in found) + '{"name": "cut off')
    flops, lines_by_name = read_results(results)
    assert flops == 1e11
    assert lines_by_name[bf16]["problem"] == "RuntimeError: no"
    assert read_results(tmp_path / "missing") == (0.0, {})
    gpu, lines = context(tmp_path)
    add_speed(gpu, "EDSR, fp32: trains", lines_by_name[fp32], {fp32: 100.0}, flops)
    assert lines[0].status == "held"
    assert lines[0].figures["peak_share"] == pytest.approx(3 * 1e11 * 100 / 989.5e12)
    assert lines[0].figures["images_per_second_low"] == 90
    add_speed_up(gpu, "EDSR", {fp32: 100.0, bf16: 490.0}, 5)
    add_speed_up(gpu, "EDSR", {fp32: 100.0, bf16: 510.0}, 5)
    add_speed_up(gpu, "EDSR", {bf16: 510.0}, 5)
    assert [line.status for line in lines[1:]] == ["failed", "held", "failed"]


def test_document_page_and_table_of_an_interrupted_check() -> None:
    document = GpuCheckDocument(
        folder="/runs/check <b>",
        dry_run=False,
        mpi="openmpi",
        machine=MACHINE,
        state="interrupted",
        steps=[
            StepRun(name="one", title="", limit_seconds=1, folder="one", state="finished", seconds=1),
            StepRun(name="two", title="", limit_seconds=1, folder="two"),
        ],
        lines=[
            CheckLine(
                step="one",
                claim="EDSR, bf16: trains",
                status="held",
                found="<script>",
                figures={"images_per_second": 5},
            ),
            CheckLine(step="one", claim="=1+1", status="failed", reason="because", last_lines=["last"]),
        ],
    )
    assert document.summary == "1 held, 1 failed"
    html = page(document)
    assert "<script>&" not in html
    assert "&lt;script&gt;" in html
    assert "NVIDIA H100 80GB HBM3" in html
    assert from_json(GpuCheckDocument, to_json(document)) == document
    assert [row.status for row in rows(document)] == ["held", "failed"]
