"""`--set KNOB=VALUE`: settings that libraries report, run.json, and invalid settings."""

import json
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, needs_mpich, requested_env, requested_knobs, run_json

PROGRAM = """
import os
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.ones(1 << 16), op=hvd.Sum)
assert bool((total == hvd.size()).all())
hvd.broadcast(torch.ones(1 << 16), 0)
print("cores", len(os.sched_getaffinity(0)), "threads", torch.get_num_threads())
"""
# For tests without Horovod, because importing torch takes seconds.
MPI_PROGRAM = """
import numpy
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(numpy.ones(1 << 16))
assert bool((total == MPI.COMM_WORLD.size).all())
print("threads", 1)
"""

HUGE_PAGES_PROGRAM = """
block = b"x" * (64 << 20)
print(open("/proc/self/smaps_rollup").read())
"""


def start(
    hvscale: Run, script: Path, tmp_path: Path, knobs: dict[str, str], *options: str
) -> tuple[dict[str, Any], str]:
    """Start two ranks with these knobs; return run.json and the output."""
    words = [word for knob, text in knobs.items() for word in ("--set", f"{knob}={text}")]
    done = hvscale("launch", "-np", "2", "--run", "job", *options, *words, "--", "python", script)
    assert done.returncode == 0, done.stderr
    record = run_json(tmp_path / "job")
    assert requested_knobs(record) == knobs
    return record, done.stdout + done.stderr


def in_effect(record: dict[str, Any], library: str) -> dict[str, str]:
    [reported] = [reported for reported in record["settings_in_effect"] if reported["library"].startswith(library)]
    assert reported["not_applied"] == {}
    settings: dict[str, str] = reported["settings"]
    return settings


@pytest.mark.parametrize(("given", "policy"), [((), "own"), (("--devices", "all"), "all")])
def test_an_option_takes_precedence_over_a_settings_file(
    hvscale: Run, tmp_path: Path, given: tuple[str, ...], policy: str
) -> None:
    """Also one that asks for the default."""
    (tmp_path / "settings.toml").write_text('mpi = "openmpi"\ndevices = "own"\n')
    done = hvscale("launch", "--mpi", "openmpi", "--run", "job", "--settings", "settings.toml", *given, "--", "true")
    assert done.returncode == 0, done.stderr
    assert run_json(tmp_path / "job")["launch"]["devices"] == policy


def test_open_mpi_reports_the_settings(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    knobs = {
        "allreduce_algorithm": "ring",
        "broadcast_algorithm": "pipeline",
        "segment_size": "64K",
        "eager_threshold": "1M",
        "registration_cache": "off",
        "transport": "ob1",
        "fusion_threshold": "32MiB",
        "cycle_time": "2.5",
        "cache_capacity": "0",
    }
    record, _ = start(hvscale, program(PROGRAM), tmp_path, knobs)
    assert record["warnings"] == []
    assert requested_env(record) == {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_priority": "45",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
        "OMPI_MCA_coll_tuned_bcast_algorithm": "3",
        "OMPI_MCA_coll_tuned_allreduce_algorithm_segmentsize": "65536",
        "OMPI_MCA_coll_tuned_bcast_algorithm_segmentsize": "65536",
        "OMPI_MCA_btl_tcp_eager_limit": "1048576",
        "OMPI_MCA_mpi_leave_pinned": "0",
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_CACHE_CAPACITY": "0",
    }
    assert record["library"]["transport"] == "ob1"
    expected = {
        "pml": "ob1",
        "coll_tuned_use_dynamic_rules": "true",
        "coll_tuned_priority": "45",
        "coll_tuned_allreduce_algorithm": "ring",
        "coll_tuned_bcast_algorithm": "pipeline",
        "coll_tuned_bcast_algorithm_segmentsize": "65536",
        "btl_tcp_eager_limit": "1048576",
        "mpi_leave_pinned": "false",
    }
    assert expected.items() <= in_effect(record, "Open MPI").items()


@needs_mpich
def test_mpich_reports_the_settings(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    knobs = {
        "allreduce_algorithm": "tree",
        "broadcast_algorithm": "scatter_allgather",
        "segment_size": "16K",
        "transport": "ofi",
        "eager_threshold": "32K",
        "cuda_ipc": "off",
    }
    record, _ = start(hvscale, program(MPI_PROGRAM), tmp_path, knobs, "--mpi", "mpich")
    assert record["library"]["transport"] == "ofi"
    # MPICH reports the number of a named value.
    expected = {
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "6",
        "MPIR_CVAR_BCAST_INTRA_ALGORITHM": "4",
        "MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE": "16384",
        "MPIR_CVAR_BCAST_TREE_PIPELINE_CHUNK_SIZE": "16384",
        "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "32768",
        "MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD": "2147483647",
        "MPIR_CVAR_CH4_IPC_MAP_REPEAT_ADDR": "0",
    }
    assert expected.items() <= in_effect(record, "MPICH").items()


@pytest.mark.parametrize("mpi", ["openmpi", pytest.param("mpich", marks=needs_mpich)])
def test_ranks_have_the_requested_binding_and_threads(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, mpi: str
) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one core is always the only one")
    _, shown = start(hvscale, program(PROGRAM), tmp_path, {"binding": "core", "threads": "1"}, "--mpi", mpi)
    assert shown.count("cores 1 threads 1") == 2


@pytest.mark.parametrize("value", ["on", "off"])
def test_large_blocks_have_huge_pages(hvscale: Run, program: Callable[[str], Path], tmp_path: Path, value: str) -> None:
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists() or "[madvise]" not in modes.read_text():
        pytest.skip(f"{modes} does not say madvise")
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        pytest.skip("only glibc has huge pages, from 2.35 on")
    _, shown = start(hvscale, program(HUGE_PAGES_PROGRAM), tmp_path, {"huge_pages": value}, "--mpi", "gloo")
    found = [int(kib) for kib in re.findall(r"AnonHugePages: +(\d+) kB", shown)]
    assert [kib > 32 << 10 for kib in found] == [value == "on"] * 2


def test_gloo_uses_the_requested_interface(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    record, _ = start(hvscale, program(PROGRAM), tmp_path, {"socket_interfaces": "lo"}, "--mpi", "gloo")
    assert requested_env(record) == {"HOROVOD_GLOO_IFACE": "lo"}
    nowhere = hvscale(
        *("launch", "-np", "2", "--mpi", "gloo", "--run", "nowhere", "--set", "socket_interfaces=nowhere0", "--"),
        *("python", tmp_path / "program.py"),
    )
    assert nowhere.returncode == 3
    assert "nowhere0" in nowhere.stdout + nowhere.stderr


def test_a_setting_that_is_not_applied_gives_a_warning(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    record, _ = start(hvscale, program(MPI_PROGRAM), tmp_path, {"nccl_algorithm": "ring"})
    assert record["warnings"] == ["NCCL_ALGO: no rank used NCCL"]


def test_settings_reach_ucx(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    knobs = {"transport": "ucx", "cuda_ipc": "off", "registration_cache": "off", "eager_threshold": "64K"}
    record, _ = start(hvscale, program(MPI_PROGRAM), tmp_path, knobs)
    assert record["library"]["transport"] == "ucx"
    assert {"UCX_TLS": "^cuda_ipc", "UCX_RCACHE_ENABLE": "n", "UCX_RNDV_THRESH": "65536"}.items() <= requested_env(
        record
    ).items()
    assert "OMPI_MCA_btl_tcp_eager_limit" not in requested_env(record)
    assert in_effect(record, "UCX") == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--mpi", "gloo", "--set", "eager_threshold=1"),
            "does not have this knob; only MPICH, MVAPICH2, MVAPICH2-GDR",
        ),
        (
            ("--set", "allreduce_algorithm=rings"),
            "did you mean allreduce_algorithm=ring? Open MPI accepts auto, linear",
        ),
        (("--set", "cuda_ipc=of"), "did you mean cuda_ipc=off?"),
        (
            ("--set", "allreduce_algorithm=spiral"),
            "Open MPI accepts auto, linear, reduce_broadcast, recursive_doubling",
        ),
        (("--set", "visible_devices=split"), "split needs MVAPICH2-GDR, which this job does not use"),
        (("--set", "eager_threshold=0"), "Open MPI accepts 80 to"),
        (("--set", "cuda_ipc"), "the value is missing; write KNOB=VALUE"),
        (("--set", "cudaipc=off"), "did you mean cuda_ipc?"),
        (("--set", "cycle_time=1", "--set", "cycle_time=2"), "cycle_time is also set to 1; set it once"),
        (
            ("--set", "cycle_time=1", "--env", "HOROVOD_CYCLE_TIME=2"),
            "--env HOROVOD_CYCLE_TIME=2 and cycle_time=1 ask for different values: remove one of them",
        ),
        (
            ("--set", "transport=ucx", "--transport", "ob1"),
            "--transport ob1 and transport=ucx ask for different values: remove one of them",
        ),
        (("--set", "transport=tcp,self", "--set", "cuda_ipc=off"), "both need UCX_TLS: use one of them"),
    ],
)
def test_an_invalid_setting_is_one_line(hvscale: Run, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = hvscale("launch", "-np", "2", "--run", "job", *options, "--", "true")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "job").exists()


def test_profile_and_scale_accept_settings(hvscale: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    script = program(MPI_PROGRAM)
    done = hvscale(
        "profile", "-np", "2", "--run", "job", "--set", "fusion_threshold=1M", "--json", "--", "python", script
    )
    assert done.returncode == 0, done.stderr
    assert requested_env(run_json(tmp_path / "job")) == {"HOROVOD_FUSION_THRESHOLD": "1048576"}
    words = ("--np", "1", "--repeat", "1", "--run", "scale", "--set", "cycle_time=2", "--metric", r"threads (\d+)")
    done = hvscale("scale", *words, "--json", "--", "python", script)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["launch"]["set"] == ["cycle_time=2"]
    assert document["launch"]["env"] == ["HOROVOD_CYCLE_TIME=2.0"]
    assert requested_knobs(run_json(tmp_path / "scale/np-1-repeat-1")) == {"cycle_time": "2"}


@pytest.mark.parametrize("own", [(), ("--env", "LD_PRELOAD=libm.so.6")])
def test_hvscale_s_broadcast_is_a_setting(hvscale: Run, own: tuple[str, ...]) -> None:
    script = (
        "from mpi4py import MPI; import os\n"
        "data = bytearray(1 << 20) if MPI.COMM_WORLD.rank else bytearray(b'x' * (1 << 20))\n"
        "MPI.COMM_WORLD.Bcast(data); assert data == b'x' * (1 << 20)\n"
        "print(os.environ['LD_PRELOAD'])"
    )
    words = ("--set", "hvscale_broadcast=chain", "--env", "HVBCAST_COUNTS=1", *own, "--run", "job")
    done = hvscale("launch", "-np", "2", *words, "--", "python", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "hvbcast: broadcasts of rank 0: 0 library, 0 flat, 1 chain" in done.stdout
    assert ("libm.so.6" in done.stdout) == bool(own)
    refused = hvscale("launch", "-np", "2", "--mpi", "gloo", "--set", "hvscale_broadcast=chain", "--", "true")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_a_slurm_script_keeps_the_knobs(hvscale: Run, tmp_path: Path) -> None:
    words = ("--set", "cuda_ipc=off", "--set", "cycle_time=2", "--placement", "slurm", "--sbatch", "job.sh")
    done = hvscale("launch", "-np", "2", *words, "--", "true")
    assert done.returncode == 0, done.stderr
    assert "--set cuda_ipc=off --set cycle_time=2 " in (tmp_path / "job.sh").read_text()


def test_the_list_of_knobs(hvscale: Run) -> None:
    everything = json.loads(hvscale("knobs", "--json").stdout)
    assert everything["schema"] == "hvscale/knobs/3"
    assert {"MVAPICH2-GDR", "Horovod", "UCX", "NCCL"} <= {row["library"] for row in everything["rows"]}
    of_gloo = json.loads(hvscale("knobs", "--mpi", "gloo", "--json").stdout)["rows"]
    assert {row["library"] for row in of_gloo} == {"CUDA", "Gloo", "Horovod", "NCCL", "OpenMP", "glibc"}
    of_nccl = hvscale("knobs", "--mpi", "nccl")
    assert "NCCL_BUFFSIZE (4194304)" in of_nccl.stdout
    of_knob = json.loads(hvscale("knobs", "cycle-time", "--json").stdout)["rows"]
    assert {row["knob"] for row in of_knob} == {"cycle_time"}
    assert json.loads(hvscale("knobs", "gloo", "--json").stdout)["rows"] == of_gloo
    misspelt = hvscale("knobs", "eager_treshold")
    assert misspelt.returncode == 2
    assert "eager_treshold: unknown knob, library or flavour; did you mean eager_threshold?" in misspelt.stderr
    assert "did you mean mpich?" in hvscale("knobs", "--mpi", "mpitch").stderr
    unknown = hvscale("knobs", "--mpi", "nonsense")
    assert (unknown.returncode, "mpich" in unknown.stderr, "ucx" in unknown.stderr) == (2, True, True)
