"""`--collectives`: real jobs, including Horovod's, whose broadcasts use a decision table."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hvscale.comm_tuning.collectives.tables.table import MAX_BYTES
from hvscale.core.run_folder import RunFolder
from tests.conftest import Run, needs_mpich, run_json

TABLE = """
schema = "hvscale/collectives/1"
mpi = "openmpi"

[[rule]]
np = 2
ranks_per_node = 2
bytes_min = 1000
bytes_max = 99999
algorithm = "two-level"
chunk_bytes = 4096
depth = 4

[[rule]]
np = 2
ranks_per_node = 2
bytes_min = 100000
algorithm = "chain"
chunk_bytes = 32768
"""
HOROVOD = """
import horovod.torch as hvd
import torch

hvd.init()
for count in (10, 1000, 100_000, 3_000_000):
    for root in (0, 1):
        tensor = torch.arange(count, dtype=torch.float32) * (hvd.rank() + 1)
        hvd.broadcast_(tensor, root, name=f"{count}-{root}")
        assert torch.equal(tensor, torch.arange(count, dtype=torch.float32) * (root + 1)), count
hvd.shutdown()
"""
MPI4PY = """
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
for count, times in ((10, 2), (1000, 3), (100_000, 5)):
    for number in range(times):
        root = number % 2
        array = np.arange(count, dtype=np.float32) * (world.rank + 1)
        world.Bcast(array, root=root)
        assert (array == np.arange(count, dtype=np.float32) * (root + 1)).all(), count
"""
UNUSUAL_BROADCASTS = """
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, last = world.rank, world.size - 1
world.Set_errhandler(MPI.ERRORS_RETURN)
# Empty messages: a count of 0, and a datatype of size 0.
empty = MPI.BYTE.Create_contiguous(0).Commit()
world.Bcast(bytearray(0), 0)
world.Bcast([bytearray(8), 5, empty], 0)
for count in (10, 2000, 50_000):
    column = MPI.DOUBLE.Create_vector(count, 1, 3).Commit()
    table = np.full((count, 3), rank, dtype=float)
    world.Bcast([table, 1, column], last)
    assert (table == np.array([last, rank, rank])).all(), count
    column.Free()
for root in (-1, last + 1):
    try:
        world.Bcast(np.zeros(50_000), root)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_ROOT, error
    else:
        raise SystemExit("a root out of range is taken")
half = world.Split(rank == 0, rank)
both = half.Create_intercomm(0, world, 1 if rank == 0 else 0)
numbers = np.full(50_000, float(rank))
both.Bcast(numbers, MPI.ROOT if rank == 0 else 0)
assert (numbers == 0).all()
print("fine")
"""
CALL = Path(__file__).parents[1] / "comm_tuning" / "programs" / "call.py"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    return path


def broadcast_counts(run: Path) -> dict[str, int]:
    """Return the number of broadcasts by algorithm, as printed by rank 0."""
    line = next(
        line for line in RunFolder(run).log(0).read_text().splitlines() if line.startswith("hvbcast: broadcasts of")
    )
    return {name: int(count) for count, name in (word.split() for word in line.partition("rank 0:")[2].split(","))}


def test_horovods_broadcasts_use_the_table(
    hvscale: Run, table: Path, program: Callable[[str], Path], tmp_path: Path
) -> None:
    """The table selects two-level for 4000 bytes and the chain for 400 kB and 12 MB.

    Horovod's own broadcasts are smaller, so the library sends them.
    """
    run = tmp_path / "run"
    words = ("--collectives", table, "--env", "HVBCAST_COUNTS=1", "--run", run, "--", "python", program(HOROVOD))
    done = hvscale("profile", "-np", "2", *words)
    assert done.returncode == 0, done.stderr
    found = broadcast_counts(run)
    assert (found["two-level"], found["chain"], found["flat"], found["k-nomial"]) == (2, 4, 0, 0)
    assert "broadcast" in done.stdout
    preload = run_json(run)["rank_environment"]["LD_PRELOAD"].split(":")
    assert [Path(library).name for library in preload] == ["libhvinit-marker.so", "libhvprof.so", "libhvbcast.so"]


@pytest.mark.parametrize("preloaded", [True, False])
def test_calling_the_broadcast_directly(hvscale: Run, table: Path, tmp_path: Path, preloaded: bool) -> None:
    options = ("--collectives", table) if preloaded else ()
    done = hvscale("launch", "-np", "3", *options, "--run", tmp_path / "run", "--", "python", CALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 3


@needs_mpich
def test_calling_the_broadcast_directly_over_mpich(hvscale: Run, table: Path, tmp_path: Path) -> None:
    """mpi4py calls MPICH's large-count functions; a table of another flavour gives a warning."""
    run = tmp_path / "run"
    words = ("--mpi", "mpich", "--collectives", table, "--env", "HVBCAST_COUNTS=1", "--run", run)
    done = hvscale("launch", "-np", "2", *words, "--", "python", CALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 2
    found = broadcast_counts(run)
    assert all(found[name] > 0 for name in found)
    assert "the decision table was made with openmpi, but this is MPICH" in RunFolder(run).log(0).read_text()


@pytest.mark.parametrize("mpi", ["openmpi", pytest.param("mpich", marks=needs_mpich)])
def test_mpi4py_s_broadcasts_are_profiled_and_use_the_table(
    hvscale: Run, table: Path, program: Callable[[str], Path], tmp_path: Path, mpi: str
) -> None:
    """mpi4py calls large-count functions with MPICH, and the ordinary ones with Open MPI."""
    run = tmp_path / "run"
    words = ("--mpi", mpi, "--collectives", table, "--env", "HVBCAST_COUNTS=1", "--run", run, "--json")
    done = hvscale("profile", "-np", "2", *words, "--", "python", program(MPI4PY))
    assert done.returncode == 0, done.stderr
    found = broadcast_counts(run)
    assert (found["two-level"], found["chain"]) == (3, 5)
    rows = json.loads(done.stdout)["rows"]
    calls = sum(row["calls"] for row in rows if row["operation"] == "broadcast")
    assert calls == 2 * (2 + 3 + 5)


@pytest.mark.parametrize("mpi", ["openmpi", pytest.param("mpich", marks=needs_mpich)])
def test_unusual_broadcasts_behave_as_without_a_table(
    hvscale: Run, table: Path, program: Callable[[str], Path], tmp_path: Path, mpi: str
) -> None:
    """Three ranks use the rules for two.

    Data with gaps is packed and then broadcast by the table.
    """
    run = tmp_path / "run"
    words = ("--mpi", mpi, "--collectives", table, "--env", "HVBCAST_COUNTS=1", "--run", run)
    done = hvscale("launch", "-np", "3", *words, "--", "python", program(UNUSUAL_BROADCASTS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 3
    found = broadcast_counts(run)
    assert (found["two-level"], found["chain"]) == (1, 1)
    nearest = "hvbcast: the decision table has no rules for 3 ranks: using those for 2"
    assert done.stdout.count(nearest) + done.stderr.count(nearest) == 1


@pytest.mark.parametrize(
    ("text", "mpi", "why"),
    [
        ("no table", "openmpi", "is not valid TOML"),
        (TABLE.replace("two-level", "ring"), "openmpi", "rule.0.algorithm: Input should be"),
        (TABLE, "gloo", "this table needs MPI, and the job uses --mpi gloo"),
        (None, "openmpi", "No such file or directory"),
    ],
)
def test_an_unusable_table_starts_nothing(hvscale: Run, tmp_path: Path, text: str | None, mpi: str, why: str) -> None:
    path = tmp_path / "table.toml"
    if text is not None:
        path.write_text(text)
    done = hvscale("launch", "-np", "2", "--mpi", mpi, "--collectives", path, "--", "true")
    assert done.returncode == 2
    assert done.stdout == ""
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_job_script_names_the_table(hvscale: Run, table: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    done = hvscale(
        "launch", "-np", "2", "--placement", "slurm", "--collectives", table, "--sbatch", script, "--", "true"
    )
    assert done.returncode == 0, done.stderr
    assert f"--collectives {table}" in script.read_text()


ALGORITHMS = """
schema = "hvscale/collectives/1"
mpi = "{mpi}"
eager_limit_bytes = 1048576

[[rule]]
operation = "allreduce"
np = 2
ranks_per_node = 2
bytes_min = 1000
algorithm = "library"
library_algorithm = "ring"
"""
ALLREDUCE = """
import numpy
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(numpy.ones(1 << 16))
assert bool((total == MPI.COMM_WORLD.size).all())
"""


@pytest.mark.parametrize("mpi", ["openmpi", pytest.param("mpich", marks=needs_mpich)])
def test_the_library_is_given_the_table(hvscale: Run, program: Callable[[str], Path], tmp_path: Path, mpi: str) -> None:
    """A setting of the user overrides the table's."""
    (tmp_path / "table.toml").write_text(ALGORITHMS.format(mpi=mpi))
    run = tmp_path / "run"
    words = ("--mpi", mpi, "--collectives", "table.toml", "--set", "eager_threshold=64K", "--transport")
    transport = {"openmpi": "ob1", "mpich": "ofi"}[mpi]
    done = hvscale("launch", "-np", "2", *words, transport, "--run", run, "--", "python", program(ALLREDUCE))
    assert done.returncode == 0, done.stderr
    record = run_json(run)
    variables = record["rank_environment"]
    file = {
        "openmpi": ("OMPI_MCA_coll_tuned_dynamic_rules_filename", "openmpi-coll-rules.conf"),
        "mpich": ("MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE", "mpich-coll.json"),
    }[mpi]
    assert variables[file[0]] == str(run / "collectives" / file[1])
    assert Path(variables[file[0]]).is_file()
    assert not any("1048576" in word for word in variables.values())
    # The table uses no broadcast algorithm of hvscale, so MPI_Bcast is not intercepted.
    assert "libhvbcast" not in variables["LD_PRELOAD"]
    assert "HVBCAST_TABLE" not in variables
    assert not (run / "collectives.table").exists()
    if mpi == "openmpi":
        [reported] = [
            reported for reported in record["settings_in_effect"] if reported["library"].startswith("Open MPI")
        ]
        assert reported["not_applied"] == {}
        assert reported["settings"]["btl_tcp_eager_limit"] == "65536"


@needs_mpich
def test_a_table_of_another_library_gives_one_warning(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "table.toml").write_text(ALGORITHMS.format(mpi="openmpi"))
    words = ("--mpi", "mpich", "--collectives", "table.toml", "--run", "run", "--", "python", program(ALLREDUCE))
    done = hvscale("launch", "-np", "2", *words)
    assert done.returncode == 0, done.stderr
    warning = "--collectives table.toml: the table was made with openmpi, but this job uses mpich: its algorithms and eager limit are not applied"
    assert [line for line in done.stderr.splitlines() if "table.toml" in line] == [f"hvscale: warning: {warning}"]
    record = run_json(tmp_path / "run")
    assert warning in record["warnings"]
    assert not (tmp_path / "run" / "collectives").exists()
    assert "libhvbcast" not in record["rank_environment"]["LD_PRELOAD"]


PRINT_NCCL_TABLE = "import os; print(open(os.environ['NCCL_TUNER_CONFIG_FILE']).read().splitlines()[1])"


@pytest.mark.parametrize("mpi", ["openmpi", "gloo"])
@pytest.mark.parametrize("plugin", [None, "plugin.so"])
def test_nccl_is_given_its_table_in_any_job(hvscale: Run, tmp_path: Path, mpi: str, plugin: str | None) -> None:
    (tmp_path / "table.toml").write_text(ALGORITHMS.format(mpi="nccl") + 'protocol = "ll"\n')
    env = ("--env", f"NCCL_TUNER_PLUGIN={plugin}") if plugin else ()
    words = ("--mpi", mpi, "--collectives", "table.toml", *env, "--run", "run", "--", "python", "-c", PRINT_NCCL_TABLE)
    done = hvscale("launch", "-np", "2", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"allreduce,1000,{MAX_BYTES},ring,ll,-1,1,2,-1,-1") == 2
    warning = "--collectives table.toml: NCCL reads it only through a tuner plug-in: add --env NCCL_TUNER_PLUGIN=PATH"
    assert (warning in run_json(tmp_path / "run")["warnings"]) == (plugin is None)


def test_bench_uses_the_table(hvscale: Run, table: Path, tmp_path: Path) -> None:
    """20 measured calls, 2 warm-up calls and one check per size; one size uses two-level, the other
    the chain.
    """
    options = ("--sizes", "4K,128K", "-n", "20", "-w", "2", "--env", "HVBCAST_COUNTS=1", "--run", "bench", "--json")
    done = hvscale("bench", "broadcast", "-np", "2", "--collectives", table, *options)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["launch"]["collectives"] == str(table)
    assert [row["wrong"] for row in document["rows"]] == [0, 0]
    found = broadcast_counts(tmp_path / "bench" / "openmpi")
    assert (found["two-level"], found["chain"]) == (23, 23)


def test_bench_of_a_back_end_without_mpi_rejects_the_table(hvscale: Run, table: Path, tmp_path: Path) -> None:
    done = hvscale("bench", "broadcast", "-np", "2", "--backend", "openmpi,gloo", "--collectives", table)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"hvscale: --collectives {table}: this table needs MPI, and the job uses --mpi gloo: choose an MPI with --mpi"
    ]
    assert not (tmp_path / "runs").exists()


def test_a_refused_job_leaves_none_of_a_table_s_files(hvscale: Run, table: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/notes.txt").write_text("mine")
    for run in (("--run", "job"), ()):
        words = ("--collectives", table, "--env", "HVPROF_JOB_MIB=32G", *run, "--", "true")
        done = hvscale("profile", "-np", "2", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert "HVPROF_JOB_MIB=32G: give a whole number" in done.stderr
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["notes.txt"]
    assert not (tmp_path / "runs").exists()


def test_a_library_supports_one_layout_per_np(hvscale: Run, tmp_path: Path) -> None:
    text = ALGORITHMS.format(mpi="openmpi")
    other = text.partition("[[rule]]")[2].replace("ranks_per_node = 2", "ranks_per_node = 1")
    (tmp_path / "table.toml").write_text(f"{text}\n[[rule]]{other}")
    done = hvscale("launch", "-np", "2", "--collectives", "table.toml", "--", "true")
    assert done.returncode == 2
    assert "rules for 2 and 1 ranks per node at np 2, but openmpi supports only one layout" in done.stderr
    assert len(done.stderr.splitlines()) == 1
