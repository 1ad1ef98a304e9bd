"""The files of a decision table are applied by the libraries: message counts and order of sums."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvscale.comm_tuning.collectives.tables.files import TableTarget, environment, write_files
from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, Operation, Rule
from tests.conftest import DIRECT_START, HANG_SECONDS, MPICH_PREFIX, Run, needs_mpich

SOURCE = Path(__file__).parents[1] / "comm_tuning" / "programs" / "one_collective.c"
KIB, MIB = 1 << 10, 1 << 20
HERE, SYSTEM_PREFIX = Path(sys.prefix), Path("/usr")
SYSTEM_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")  # of Debian's Open MPI 4
RULES = "OMPI_MCA_coll_tuned_dynamic_rules_filename"


def open_mpis() -> list[Path]:
    """Return the prefixes of the environment's Open MPI and, if installed, of the system's."""
    return [HERE, *([SYSTEM_PREFIX] if (SYSTEM_LIBRARIES / "libmpi.so.40").exists() else [])]


def rule(operation: Operation, first: int, last: int | None, algorithm: str | None = None, **more: Any) -> Rule:
    fields = {"operation": operation, "np": 4, "ranks_per_node": 4, "bytes_min": first, "bytes_max": last}
    return Rule.model_validate({**fields, "algorithm": "library", "library_algorithm": algorithm, **more})


def compile_program(prefix: Path, folder: Path) -> Path:
    program = folder / "one_collective"
    subprocess.run([prefix / "bin/mpicc", "-O1", "-o", program, SOURCE], check=True, env=mpi_environment(prefix))
    return program


def mpi_environment(prefix: Path, **more: str) -> dict[str, str]:
    """Return the environment of a prefix; Open MPI 4 and 5 have the same binary interface."""
    environment = {name: word for name, word in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    libraries = {"LD_LIBRARY_PATH": str(SYSTEM_LIBRARIES)} if prefix == SYSTEM_PREFIX else {}
    return {**environment, "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}", **DIRECT_START, **libraries, **more}


def run_under_mpirun(prefix: Path, words: list[str | Path], folder: Path, **more: str) -> str:
    done = subprocess.run(
        [prefix / "bin/mpirun", *words],
        cwd=folder,
        env=mpi_environment(prefix, **more),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


OPENMPI_TABLE = CollectivesTable(
    mpi="openmpi",
    rule=[
        rule("broadcast", KIB, 64 * KIB, "linear"),
        rule("broadcast", 64 * KIB + 1, None, "pipeline", segment_bytes=64 * KIB),
        rule("allreduce", KIB, 64 * KIB, "recursive_doubling"),
        rule("allreduce", 64 * KIB + 1, None, "ring"),
        rule("allgather", KIB, 64 * KIB, "recursive_doubling"),
        rule("allgather", 64 * KIB + 1, None, "ring"),
        rule("gather", KIB, 64 * KIB, "binomial"),
    ],
)
# For each collective: a rank, and its messages to other ranks below and above the crossover.
SENT = {
    "broadcast": (0, {1: 1, 2: 1, 3: 1}, {1: 16}),
    "allreduce": (0, {1: 1, 2: 1}, {1: 6}),
    "allgather": (0, {1: 1, 2: 1}, {1: 3}),
}


def sent_by(rank: int, prefix: Path, folder: Path, words: list[str | Path], **more: str) -> dict[int, int]:
    """Return the number of messages to each rank, as counted by Open MPI's monitoring."""
    monitoring = (
        ("pml_monitoring_enable", "2"),
        ("pml_monitoring_enable_output", "3"),
        ("pml_monitoring_filename", "sent"),
    )
    options = [word for name, value in monitoring for word in ("--mca", name, value)]
    run_under_mpirun(prefix, ["-np", "4", "--map-by", "slot:OVERSUBSCRIBE", *options, *words], folder, **more)
    counted = (folder / f"sent.{rank}.prof").read_text()
    found = re.findall(rf"^I\t{rank}\t(\d+)\t\d+ bytes\t(\d+) msgs", counted, re.MULTILINE)
    return {int(other): int(count) for other, count in found}


@pytest.mark.parametrize("prefix", open_mpis(), ids=str)
def test_open_mpi_applies_each_rule_in_its_range(prefix: Path, tmp_path: Path) -> None:
    job = TableTarget(tmp_path, OPENMPI_TABLE, 4, 4)
    write_files(job)
    program = compile_program(HERE, tmp_path)
    variables = environment(job)
    assert variables[RULES] == str(tmp_path / "openmpi-coll-rules.conf")
    without_file = {name: word for name, word in variables.items() if name != RULES}
    for operation, (rank, below, above) in SENT.items():
        assert sent_by(rank, prefix, tmp_path, [program, operation, str(64 * KIB)], **variables) == below, operation
        assert sent_by(rank, prefix, tmp_path, [program, operation, str(MIB)], **variables) == above, operation
    # Below the smallest size of the rules, the library decides as without the file.
    without = sent_by(0, prefix, tmp_path, [program, "broadcast", "512"], **without_file)
    assert sent_by(0, prefix, tmp_path, [program, "broadcast", "512"], **variables) == without
    # In a binomial tree rank 3 sends to rank 2; in the other algorithm it sends to the root.
    assert sent_by(3, prefix, tmp_path, [program, "gather", str(64 * KIB)], **variables) == {2: 1}


def test_open_mpi_reads_version_2_of_the_format(tmp_path: Path) -> None:
    job = TableTarget(tmp_path, OPENMPI_TABLE, 4, 4)
    write_files(job)
    program = compile_program(HERE, tmp_path)
    variables = {**environment(job), RULES: str(tmp_path / "openmpi-coll-rules-2.conf")}
    for operation, (rank, below, above) in SENT.items():
        assert sent_by(rank, HERE, tmp_path, [program, operation, str(64 * KIB)], **variables) == below, operation
        assert sent_by(rank, HERE, tmp_path, [program, operation, str(MIB)], **variables) == above, operation


@pytest.mark.usefixtures("namespaces")
def test_between_nodes_coll_han_keeps_messages_without_an_algorithm(hvscale: Run, tmp_path: Path) -> None:
    """The order of sums is that of the ring if the table names it, and otherwise the library's."""
    table = tmp_path / "table.toml"
    rules = [rule("allreduce", 64 * KIB, None, "ring", ranks_per_node=1)]
    table.write_text(CollectivesTable(mpi="openmpi", rule=rules).toml())
    program = compile_program(HERE, tmp_path)

    def sums(size: int, *words: str | Path) -> str:
        launch = ("launch", "-np", "4", "--placement", "netns", "--nodes", "4", *words)
        done = hvscale(
            *launch,
            "--run",
            tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}",
            "--",
            program,
            "allreduce",
            str(size),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    ring = ("--set", "allreduce_algorithm=ring")
    assert sums(MIB, "--collectives", table) == sums(MIB, *ring) != sums(MIB)
    assert sums(16 * KIB, "--collectives", table) == sums(16 * KIB) != sums(16 * KIB, *ring)


@needs_mpich
def test_mpich_applies_each_decision_in_its_range(tmp_path: Path) -> None:
    """The order of sums equals that of an algorithm forced by a variable, and differs from the
    default.
    """
    rules = [
        rule("allreduce", 4 * KIB, 64 * KIB, "recursive_multiplying"),
        rule("allreduce", 64 * KIB + 1, None, "ring"),
        rule("broadcast", 1, None, "pipelined_tree", segment_bytes=16 * KIB),
    ]
    job = TableTarget(tmp_path, CollectivesTable(mpi="mpich", rule=rules), 4, 4, MPICH_PREFIX / "lib/libmpi.so.12")
    write_files(job)
    program = compile_program(MPICH_PREFIX, tmp_path)
    words: list[str | Path] = ["-np", "4", program, "allreduce"]

    def sums(size: int, **more: str) -> str:
        return run_under_mpirun(MPICH_PREFIX, [*words, str(size)], tmp_path, **more)

    def forced(algorithm: str, size: int) -> str:
        return sums(size, MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=algorithm)

    variables = environment(job)
    assert sums(MIB, **variables) == forced("ring", MIB) != sums(MIB)
    assert sums(64 * KIB, **variables) == forced("recursive_multiplying", 64 * KIB) != forced("ring", 64 * KIB)
    assert sums(2 * KIB, **variables) == sums(2 * KIB) != forced("ring", 2 * KIB)
    for operation in ("broadcast", "gather", "allgather"):
        run_under_mpirun(MPICH_PREFIX, ["-np", "4", program, operation, str(MIB)], tmp_path, **variables)
