"""Every flavour: equal results, and options that apply to only one of them."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hvscale.core.host import available_cores
from hvscale.profiling import library_path
from hvscale.profiling.read.profile_file import ProfileFile
from tests.conftest import HANG_SECONDS, MPICH_PREFIX, PROGRAMS, Run, needs_mpich, run_json
from tests.system.mpi_prefixes import fake_mvapich2
from tests.system.test_placements import HOROVOD

RANKS = 3
ROUNDS = 3
ELEMENTS = 300_000
WITH_MPI = ("openmpi", pytest.param("mpich", marks=needs_mpich))
EVERY_CALL = Path(__file__).parents[1] / "profiling" / "programs" / "every_call.py"
SHOW_DEVICES = ("sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-unset}")

HOROVOD_PROGRAM = f"""
import horovod.torch as hvd, sys, time, torch
hvd.init()
total = [hvd.allreduce(torch.full(({ELEMENTS},), float(hvd.rank() + step)), op=hvd.Sum, name=f"sum.{{step}}") for step in range({ROUNDS})]
root = hvd.broadcast(torch.full((7,), float(hvd.rank())), root_rank=2, name="root")
print([int(step.unique().item()) for step in total], int(root.unique().item()), hvd.local_rank(), hvd.size())
time.sleep(1)  # at shutdown Horovod loses timeline events that it has not yet written
"""

ABORTS = f"""
import time
from mpi4py import MPI
{HOROVOD}
if hvd.rank() == 1:
    print("the last words", flush=True)
    MPI.COMM_WORLD.Abort(9)
time.sleep(1200)
"""


@pytest.mark.parametrize("mpi", [*WITH_MPI, "gloo"])
def test_a_horovod_script_has_equal_results_and_counts_under_every_flavour(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, mpi: str
) -> None:
    command = ("profile", "-np", RANKS, "--mpi", mpi, "--run", "job", "--bins", "1M,2M", "--json")
    done = hvscale(*command, "--", "python", program(HOROVOD_PROGRAM))
    assert done.returncode == 0, done.stderr
    for rank in range(RANKS):
        # The library may print a warning before it.
        output = (tmp_path / f"job/logs/rank-{rank:05d}.log").read_text().splitlines()
        assert output[-1] == f"{[sum(range(RANKS)) + RANKS * step for step in range(ROUNDS)]} 2 {rank} {RANKS}"
    sums = {
        (row["calls"], row["bytes"])
        for row in json.loads(done.stdout)["rows"]
        if (row["operation"], row["bytes_min"]) == ("allreduce", 2**20 + 1)
    }
    assert sums == {(RANKS * ROUNDS, RANKS * ROUNDS * ELEMENTS * 4)}


@needs_mpich
def test_mpi4py_calls_are_counted_with_and_without_large_counts(hvscale: Run, tmp_path: Path) -> None:
    """mpi4py calls MPICH's large-count functions, which Open MPI 5 does not have."""
    rows = []
    for mpi in ("openmpi", "mpich"):
        done = hvscale(
            "profile", "-np", 3, "--mpi", mpi, "--run", mpi, "--bins", "pow2", "--json", "--", "python", EVERY_CALL
        )
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert [text for text in document["warnings"] if "cores" not in text] == []
        rows.append(
            {
                (row["operation"], row["bytes_min"]): (row["calls"], row["bytes"])
                for row in [*document["rows"], *document["point_to_point"]]
            }
        )
    assert rows[0] == rows[1]
    header = ProfileFile(tmp_path / "mpich/hvprof/rank-00000.hvp").header
    assert {operation for operation, _ in rows[0]} == {name for name in header.operations if name} - {"step"}
    preloaded = [run_json(tmp_path / mpi)["rank_environment"]["LD_PRELOAD"].split(":") for mpi in ("openmpi", "mpich")]
    assert [second for _, second in preloaded] == [str(library_path(large_counts)) for large_counts in (False, True)]


@needs_mpich
def test_both_environments_start_the_flavours_programs(tmp_path: Path) -> None:
    print_prefix = ("python", "-c", "import sys; print(sys.prefix)")
    own = Path(PROGRAMS).parent
    for number, programs in enumerate((PROGRAMS, MPICH_PREFIX / "bin")):
        for mpi, prefix in (("mpich", MPICH_PREFIX), ("openmpi", own)):
            done = subprocess.run(
                [programs / "hvscale", "launch", "--mpi", mpi, "--run", f"{mpi}-{number}", "--", *print_prefix],
                cwd=tmp_path,
                env={**os.environ, "VIRTUAL_ENV": str(own), "PATH": f"{own / 'bin'}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
            )
            assert done.stdout == f"[0] {prefix}\n", done.stderr
            assert Path(run_json(tmp_path / f"{mpi}-{number}")["library"]["launcher"]).parent == prefix / "bin"


def test_a_missing_mpich_environment_is_an_error_with_a_fix(tmp_path: Path) -> None:
    """Run a copy of the command that has no MPICH environment next to it."""
    alone = tmp_path / "clone" / ".venv"
    alone.mkdir(parents=True)
    for name in ("bin", "lib", "pyvenv.cfg"):
        (alone / name).symlink_to(PROGRAMS.parent / name)
    run = "import sys; from hvscale.cli.main import main; sys.argv[0] = 'hvscale'; main()"
    done = subprocess.run(
        [alone / "bin/python", "-c", run, "launch", "--mpi", "mpich", "--", "python", "-c", "pass"],
        cwd=tmp_path,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 2
    assert "no MPICH in PATH" in done.stderr
    assert "make setup MPI=mpich" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@needs_mpich
def test_an_mpi_mismatch_of_horovod_and_launcher_names_both(hvscale: Run) -> None:
    of_mpich = hvscale("launch", "-np", 2, "--", MPICH_PREFIX / "bin/python", "-c", "pass")
    assert of_mpich.returncode == 2
    assert re.search(r"is built for mpich 5\S+ \(libmpi.so.12\), but \S+mpirun is openmpi 5", of_mpich.stderr)
    of_open_mpi = hvscale("launch", "-np", 2, "--mpi", "mpich", "--", PROGRAMS / "python", "-c", "pass")
    assert of_open_mpi.returncode == 2
    assert re.search(r"is built for openmpi 5\S+ \(libmpi.so.40\), but \S+mpiexec.hydra is mpich 5", of_open_mpi.stderr)
    assert "make setup MPI=mpich" in of_open_mpi.stderr


@needs_mpich
@pytest.mark.parametrize("transport", ["ucx", "ofi"])
def test_mpich_uses_the_requested_transport(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, transport: str
) -> None:
    script = program("from mpi4py import MPI")
    command = ("launch", "-np", 2, "--mpi", "mpich", "--transport", transport, "--env", "MPIR_CVAR_DEBUG_SUMMARY=1")
    done = hvscale(*command, "--run", "job", "--", "python", script)
    assert done.returncode == 0, done.stderr
    assert f"==== {transport.upper()} netmod" in done.stdout.replace("==== OFI dynamic settings", "==== OFI netmod")
    library = run_json(tmp_path / "job")["library"]
    assert (library["transport"], sorted(library["transports"])) == (transport, ["ofi", "ucx"])


def test_open_mpi_uses_the_requested_or_default_transport(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script = program("from mpi4py import MPI")
    command = ("launch", "-np", 2, "--env", "OMPI_MCA_pml_base_verbose=10", "--run")
    own = hvscale(*command, "own", "--", "python", script)
    assert own.returncode == 0, own.stderr
    assert run_json(tmp_path / "own")["library"]["transport"] == "auto"
    named = hvscale(*command, "named", "--transport", "ob1", "--", "python", script)
    assert named.returncode == 0, named.stderr
    assert run_json(tmp_path / "named")["library"]["transport"] == "ob1"
    assert set(re.findall(r"select: component (\w+) selected", named.stdout)) == {"ob1"}
    assert "component ucx" in own.stdout
    assert "component ucx" not in named.stdout


@pytest.mark.parametrize("mpi", WITH_MPI)
def test_ranks_are_unbound_and_may_outnumber_cores(hvscale: Run, program: Callable[[str], Path], mpi: str) -> None:
    ranks = available_cores() + 1
    script = program("import os; print(sorted(os.sched_getaffinity(0)))")
    done = hvscale("launch", "-np", ranks, "--mpi", mpi, "--", "python", script)
    assert done.returncode == 0, done.stderr
    own = sorted(os.sched_getaffinity(0))
    assert sorted(done.stdout.splitlines()) == sorted(f"[{rank}] {own}" for rank in range(ranks))


@pytest.mark.parametrize("mpi", WITH_MPI)
def test_an_aborting_rank_is_named_with_its_last_lines(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, mpi: str
) -> None:
    done = hvscale(
        "launch", "-np", 3, "--mpi", mpi, "--run", "job", "--", "python", program(ABORTS), timeout=HANG_SECONDS
    )
    assert done.returncode == 3
    assert "the last words" in done.stderr
    assert run_json(tmp_path / "job")["failed_rank"] == 1


@pytest.mark.parametrize("mpi", [*WITH_MPI, "gloo"])
@pytest.mark.parametrize(
    ("policy", "callers", "seen"),
    [
        ("own", None, ["0", "1", "2"]),
        ("own", "5,GPU-af31,7", ["5", "GPU-af31", "7"]),
        ("all", None, ["unset"] * 3),
        ("all", "5,6", ["5,6"] * 3),
    ],
)
def test_each_rank_sees_the_requested_devices(
    hvscale: Run, tmp_path: Path, mpi: str, policy: str, callers: str | None, seen: list[str]
) -> None:
    given = {} if callers is None else {"CUDA_VISIBLE_DEVICES": callers}
    command = ("launch", "-np", 3, "--mpi", mpi, "--devices", policy, "--run", "job", "--", *SHOW_DEVICES)
    done = hvscale(*command, **given)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {devices}" for rank, devices in enumerate(seen)]
    record = run_json(tmp_path / "job")
    assert (record["launch"].get("devices", "all"), record["library_devices_variable"]) == (policy, None)
    expected = [None if devices == "unset" else devices for devices in seen]
    assert [rank["devices"]["variables"] for rank in record["ranks"]] == [
        {"CUDA_VISIBLE_DEVICES": devices} for devices in expected
    ]
    offered = len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()])
    assert [rank["devices"]["offered"] for rank in record["ranks"]] == [offered] * 3


def test_a_rank_without_a_device_fails(hvscale: Run, tmp_path: Path) -> None:
    command = ("launch", "-np", 3, "--devices", "own", "--run", "job", "--", *SHOW_DEVICES)
    done = hvscale(*command, CUDA_VISIBLE_DEVICES="0,1")
    assert done.returncode == 3
    assert "local rank 2 has no GPU: its node offers 0,1" in done.stderr
    assert run_json(tmp_path / "job")["failed_rank"] == 2


@pytest.fixture
def mvapich2_gdr(tmp_path: Path) -> Path:
    return fake_mvapich2(tmp_path, "MVAPICH2-GDR 2.3.7 Sun Apr 10 22:00:00 EST 2022 ch3:mrail")


@needs_mpich
def test_split_gives_the_library_all_devices(hvscale: Run, tmp_path: Path, mvapich2_gdr: Path) -> None:
    show = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES / $MV2_VISIBLE_DEVICES / $MV2_ENABLE_AFFINITY")
    path = f"{os.environ['PATH']}:{mvapich2_gdr / 'bin'}"  # used although MPICH's Hydra is earlier in PATH
    command = ("launch", "-np", 2, "--mpi", "mvapich2", "--devices", "split", "--run", "job", "--", *show)
    done = hvscale(*command, PATH=path, CUDA_VISIBLE_DEVICES="4,6")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 4 / 4,6 / 0", "[1] 6 / 4,6 / 0"]
    record = run_json(tmp_path / "job")
    assert record["library"]["version"] == "2.3.7-GDR"
    assert record["library"]["launcher"] == str(mvapich2_gdr / "bin/mpiexec.hydra")
    assert (record["launch"]["devices"], record["library_devices_variable"]) == ("split", "MV2_VISIBLE_DEVICES")
    seen = [rank["devices"]["variables"] for rank in record["ranks"]]
    assert seen == [{"CUDA_VISIBLE_DEVICES": own, "MV2_VISIBLE_DEVICES": "4,6"} for own in ("4", "6")]


@needs_mpich
def test_the_launchers_library_takes_precedence(hvscale: Run, tmp_path: Path, mvapich2_gdr: Path) -> None:
    says_mvapich2 = r"""
#include <string.h>
int MPI_Get_library_version(char *text, int *length)
{
    strcpy(text, "MVAPICH2 Version      :\t2.3.5\n");
    *length = (int)strlen(text);
    return 0;
}
"""
    (tmp_path / "mpi.c").write_text(says_mvapich2)
    library = mvapich2_gdr / "lib" / "libmpi.so.12"
    library.parent.mkdir()
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-o", library, tmp_path / "mpi.c"], check=True
    )
    path = f"{mvapich2_gdr / 'bin'}:{os.environ['PATH']}"
    rejected = hvscale(
        "launch", "--mpi", "mpich", "--", "python", "-c", "pass", PATH=path, LD_LIBRARY_PATH=str(library.parent)
    )
    assert rejected.returncode == 2
    assert "is built for mvapich2 2.3.5 (libmpi.so.12), but" in rejected.stderr
    assert "LD_LIBRARY_PATH" in rejected.stderr
    first = hvscale("launch", "--mpi", "mvapich2", "--", "sh", "-c", "echo $LD_LIBRARY_PATH", PATH=path)
    assert first.stdout == f"[0] {library.parent}\n"
    passes_the_check = hvscale("launch", "--mpi", "mvapich2", "--", "python", "-c", "print(1)", PATH=path)
    assert passes_the_check.stdout == "[0] 1\n", passes_the_check.stderr


def test_intel_mpi_runs_horovod_of_the_mpich_environment(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    """Needs an installed Intel MPI; its setvars.sh sets I_MPI_ROOT."""
    launcher = shutil.which("mpiexec.hydra", path=f"{os.environ.get('I_MPI_ROOT', '/opt/intel/oneapi/mpi/latest')}/bin")
    if launcher is None or not MPICH_PREFIX.exists():
        pytest.skip("no Intel MPI here (I_MPI_ROOT), or no MPICH environment")
    path = f"{Path(launcher).parent}:{os.environ['PATH']}"
    command = ("profile", "-np", RANKS, "--mpi", "intelmpi", "--run", "job", "--bins", "1M,2M", "--json")
    done = hvscale(*command, "--", "python", program(HOROVOD_PROGRAM), PATH=path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["calls"] for row in rows if row["bytes_min"] == 2**20 + 1] == [RANKS * ROUNDS]
    assert run_json(tmp_path / "job")["library"]["launcher"] == launcher
