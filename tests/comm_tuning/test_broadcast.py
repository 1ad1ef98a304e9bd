"""hvscale's broadcast in real ranks: data, rules, fallback to the library, and hvprof."""

import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from hvscale.comm_tuning.collectives.broadcast import library_path
from hvscale.comm_tuning.collectives.broadcast import preload_environment as preload_broadcast
from hvscale.comm_tuning.collectives.tables.table import Algorithm, CollectivesTable, Rule
from hvscale.core.built_library import built_library
from hvscale.launch.supervision import init_marker
from hvscale.profiling import library_path as hvprof_path
from hvscale.profiling.analyze.breakdown import breakdown
from tests.native import BROADCAST, FLAGS, SHARED_LIBRARY, sanitizer_runtime
from tests.profiling.conftest import MakeRun, Mpi
from tests.profiling.test_sanitizers import PRELOADED

PROGRAMS = Path(__file__).parent / "programs"
COUNTS = {"HVBCAST_COUNTS": "1"}
THREAD_BROADCASTS = 3 * 40  # by_table.c's broadcasts in threads
# Gives each rank its own table before it runs the program.
TABLE_PER_RANK = """
import os, sys
number = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
tables = sys.argv[2].split(",")
table = tables[min(number, len(tables) - 1)]
os.environ.update(LD_PRELOAD=sys.argv[1], **({"HVBCAST_TABLE": table} if table else {}))
os.execv(sys.argv[3], sys.argv[3:])
"""
# Gives each of two ranks its own algorithm.
ALGORITHM_PER_RANK = """
import os, sys
number = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
os.environ.update(LD_PRELOAD=sys.argv[1], HVBCAST_ALGORITHM=sys.argv[2 + number])
os.execv(sys.argv[4], sys.argv[4:])
"""


def table_for(np: int, mpi: str) -> CollectivesTable:
    def rule(first: int, last: int | None, algorithm: Algorithm, chunk: int, depth: int) -> Rule:
        choice = {"algorithm": algorithm, "chunk_bytes": chunk, "depth": depth}
        return Rule.model_validate({"np": np, "ranks_per_node": np, "bytes_min": first, "bytes_max": last, **choice})

    rules = [
        rule(100, 999, "k-nomial", 64, 3),
        rule(1000, 9999, "two-level", 500, 2),
        rule(10_000, 99_999, "flat", 4096, 4),
        rule(100_000, None, "chain", 10_000, 3),
    ]
    return CollectivesTable(mpi=mpi, rule=rules)


def counts(library: int, flat: int = 0, chain: int = 0, k_nomial: int = 0, two_level: int = 0) -> str:
    return (
        f"hvbcast: broadcasts of rank 0: {library} library, {flat} flat, {chain} chain, {k_nomial} k-nomial, "
        f"{two_level} two-level"
    )


def counts_by_table(size: int) -> str:
    """The counts of by_table.c with `table_for`."""
    return counts(3 * size + 3, size, size, size, size + 1 + THREAD_BROADCASTS)


def counts_all_by_library(size: int) -> str:
    return counts(7 * size + 4 + THREAD_BROADCASTS)


def different_tables_warning(rank: int, size: int) -> str:
    return (
        f"hvbcast: rank 0 and rank {rank} of {size} have different decision tables, or one has none: broadcasts are left to the MPI library. "
        "Give all ranks the same table"
    )


def write_table(folder: Path, table: CollectivesTable, name: str = "table") -> Path:
    path = folder / name
    path.write_bytes(table.compact())
    return path


def flavour_of(mpi: Mpi) -> str:
    return "openmpi" if mpi.flavour == "Open MPI" else "mpich"


def messages(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "hvbcast" in line]


@pytest.mark.parametrize(("name", "size"), [*product(("open_mpi", "mpich"), (2, 3, 4)), ("mpi_abi", 3)])
def test_every_algorithm_gives_the_library_s_result(request: pytest.FixtureRequest, name: str, size: int) -> None:
    mpi: Mpi = request.getfixturevalue(name)
    program = mpi.compile("broadcasts", PROGRAMS)
    done = mpi.start(size, [str(program)], {"LD_PRELOAD": str(library_path())})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(", 0 wrong")
    assert messages(done) == []


def test_a_file_size_limit_disables_shared_memory_but_not_the_job(open_mpi: Mpi) -> None:
    """Open MPI's own shared memory would exceed the limit too."""
    program = ["prlimit", "--fsize=3000000", str(open_mpi.compile("broadcasts", PROGRAMS))]
    over_tcp = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
    done = open_mpi.start(2, program, {"LD_PRELOAD": str(library_path()), **over_tcp})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(", 0 wrong")
    assert any("cannot share memory" in line for line in messages(done))


@pytest.mark.parametrize("size", [2, 4])
def test_each_size_uses_its_rule(any_mpi: Mpi, tmp_path: Path, size: int) -> None:
    table = write_table(tmp_path, table_for(size, flavour_of(any_mpi)))
    program = any_mpi.compile("by_table", PROGRAMS)
    done = any_mpi.start(size, [str(program)], {**preload_broadcast(table, {}), **COUNTS})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "0 failures"
    assert messages(done) == [counts_by_table(size)]


@pytest.mark.parametrize("first", ["hvprof", "hvbcast"])
def test_hvprof_counts_only_the_programs_calls(any_mpi: Mpi, make_run: MakeRun, tmp_path: Path, first: str) -> None:
    size = 3
    run = make_run(size, any_mpi.flavour)
    table = write_table(tmp_path, table_for(size, flavour_of(any_mpi)))
    libraries = [str(hvprof_path()), str(library_path())]
    preload = ":".join(libraries if first == "hvprof" else reversed(libraries))
    environment = {"LD_PRELOAD": preload, "HVPROF_DIRECTORY": str(run.hvprof), "HVBCAST_TABLE": str(table), **COUNTS}
    done = any_mpi.start(size, [str(any_mpi.compile("by_table", PROGRAMS))], environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert messages(done) == [counts_by_table(size)]
    found = breakdown(run)
    calls = Counter[str]()
    for row in [*found.rows, *found.point_to_point]:
        calls[row.operation] += row.calls
    # The broadcast with a root out of range failed.
    assert calls == {
        "broadcast": size * (7 * size + 3 + THREAD_BROADCASTS),
        "ibroadcast": size,
        "allreduce": size,
        "receive": size - 1,
        "isend": size - 1,
    }


@pytest.mark.parametrize("size", [2, 3])
def test_the_algorithm_changes_between_broadcasts(any_mpi: Mpi, tmp_path: Path, size: int) -> None:
    """Broadcasts of 64 KiB or more: two of the four sizes, in two communicators, from each root."""
    program = any_mpi.compile("switches", PROGRAMS)
    table = write_table(tmp_path, table_for(size, flavour_of(any_mpi)))
    words = [str(program), "", "chain", "off", "two-level", "chain", ""]
    done = any_mpi.start(size, words, {**preload_broadcast(table, {}), **COUNTS})
    assert (done.returncode, done.stdout.strip()) == (0, "0 failures"), done.stderr
    each = 2 * size
    # The table has rules for three of the sizes: flat twice, and chain.
    by_table = {"library": each, "flat": 2 * each, "chain": each}
    expected = counts(
        library=2 * by_table["library"] + 3 * 2 * each + 4 * each,
        flat=2 * by_table["flat"],
        chain=2 * by_table["chain"] + 2 * 2 * each,
        two_level=2 * each,
    )
    assert messages(done) == [expected]


@pytest.mark.parametrize("algorithm", ["chain", "off", "circle"])
def test_a_variable_selects_the_algorithm_from_the_start(any_mpi: Mpi, algorithm: str) -> None:
    program = any_mpi.compile("switches", PROGRAMS)
    more = {"LD_PRELOAD": str(library_path()), "HVBCAST_ALGORITHM": algorithm, **COUNTS}
    done = any_mpi.start(2, [str(program), "start"], more)
    assert (done.returncode, done.stdout.strip()) == (0, "0 failures"), done.stderr
    unknown = "hvbcast: HVBCAST_ALGORITHM=circle: unknown: it is ignored; use off, flat, chain, k-nomial or two-level"
    by_chain = 8 if algorithm == "chain" else 0
    assert messages(done) == [*([unknown] if algorithm == "circle" else []), counts(16 - by_chain, chain=by_chain)]


def test_ranks_with_different_algorithms_use_the_library(any_mpi: Mpi) -> None:
    program = any_mpi.compile("switches", PROGRAMS)
    words = [sys.executable, "-c", ALGORITHM_PER_RANK, str(library_path()), "chain", "two-level", str(program), "start"]
    done = any_mpi.start(2, words, COUNTS)
    assert (done.returncode, done.stdout.strip()) == (0, "0 failures"), done.stderr
    assert messages(done) == [different_tables_warning(1, 2), counts(16)]


def test_the_nearest_rules_are_used_and_reported_once(any_mpi: Mpi, tmp_path: Path) -> None:
    other = "mpich" if flavour_of(any_mpi) == "openmpi" else "openmpi"
    table = write_table(tmp_path, table_for(4, other))
    program = any_mpi.compile("by_table", PROGRAMS)
    done = any_mpi.start(3, [str(program)], {**preload_broadcast(table, {}), **COUNTS})
    assert done.returncode == 0, done.stdout + done.stderr
    nearest = "hvbcast: the decision table has no rules for 3 ranks: using those for 4"
    # With the standard's ABI the flavour is unknown.
    library = (
        f"hvbcast: the decision table was made with {other}, but this is {any_mpi.flavour}: its rules are used anyway"
    )
    expected = [nearest, *([library] if any_mpi.flavour != "MPI ABI" else [])]
    assert messages(done) == [*expected, counts_by_table(3)]


@pytest.mark.parametrize("table_of_last_rank", ["another", "none", "damaged"])
def test_ranks_with_different_tables_use_the_library(any_mpi: Mpi, tmp_path: Path, table_of_last_rank: str) -> None:
    size = 3
    table = write_table(tmp_path, table_for(size, flavour_of(any_mpi)))
    another = write_table(tmp_path, table_for(size + 1, flavour_of(any_mpi)), "another")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(table.read_bytes().replace(b" 64 3 2", b" 65 3 2"))
    last = {"another": str(another), "none": "", "damaged": str(damaged)}[table_of_last_rank]
    program = any_mpi.compile("by_table", PROGRAMS)
    words = [sys.executable, "-c", TABLE_PER_RANK, str(library_path()), f"{table},{table},{last}", str(program)]
    done = any_mpi.start(size, words, COUNTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert messages(done) == [different_tables_warning(2, size), counts_all_by_library(size)]


def test_different_tables_are_reported_at_start(any_mpi: Mpi, tmp_path: Path) -> None:
    tables = [write_table(tmp_path, table_for(size, flavour_of(any_mpi)), str(size)) for size in (2, 3)]
    program = any_mpi.compile("starts", PROGRAMS)
    words = [sys.executable, "-c", TABLE_PER_RANK, str(library_path()), ",".join(map(str, tables)), str(program)]
    done = any_mpi.start(2, words, {})
    assert done.returncode == 0, done.stdout + done.stderr
    assert messages(done) == [different_tables_warning(1, 2)]


@pytest.mark.parametrize(
    "order", ["hvbcast init_marker hvprof", "init_marker hvbcast hvprof", "init_marker hvprof hvbcast"]
)
def test_several_preloaded_libraries_replace_mpi_init(
    open_mpi: Mpi, make_run: MakeRun, tmp_path: Path, order: str
) -> None:
    """Python loads MPI only for an extension module."""
    run = make_run(2, open_mpi.flavour)
    tables = [write_table(tmp_path, table_for(size, "openmpi"), str(size)) for size in (2, 3)]
    marker = built_library(init_marker.LIBRARY)
    paths = {"hvbcast": library_path(), "init_marker": marker, "hvprof": hvprof_path()}
    preload = ":".join(str(paths[name]) for name in order.split())
    program = [sys.executable, "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"]
    words = [sys.executable, "-c", TABLE_PER_RANK, preload, ",".join(map(str, tables)), *program]
    more = {init_marker.VARIABLE: str(tmp_path / "rank"), "HVPROF_DIRECTORY": str(run.hvprof)}
    done = open_mpi.start(2, words, more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert messages(done) == [different_tables_warning(1, 2)]
    assert (tmp_path / "rank.init-done").exists()
    assert {row.operation: row.calls for row in breakdown(run).rows} == {"barrier": 2}


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data.replace(b" 64 3 2", b" 65 3 2"), "its checksum is wrong"),
        (lambda data: data[: len(data) // 2], "it is truncated"),
        (lambda data: b"", "it is not a decision table of hvscale"),
        (lambda data: data + b"x", "its checksum is wrong"),
        (None, "No such file or directory"),
    ],
)
def test_a_damaged_table_is_reported_once(open_mpi: Mpi, tmp_path: Path, damage: object, why: str) -> None:
    table = write_table(tmp_path, table_for(2, "openmpi"))
    if callable(damage):
        table.write_bytes(damage(table.read_bytes()))
    else:
        table.unlink()
    program = open_mpi.compile("by_table", PROGRAMS)
    done = open_mpi.start(2, [str(program)], {**preload_broadcast(table, {}), **COUNTS})
    assert done.returncode == 0, done.stdout + done.stderr
    left = f"hvbcast: HVBCAST_TABLE={table}: {why}: broadcasts are left to the MPI library"
    assert messages(done) == [left, counts_all_by_library(2)]


def test_more_than_two_gibibytes(open_mpi: Mpi) -> None:
    done = open_mpi.start(2, [str(open_mpi.compile("huge", PROGRAMS))], {"LD_PRELOAD": str(library_path())})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "0 failures"


def sanitized(folder: Path, sanitizer: str, runtime: str) -> str:
    """Compile the broadcast with the sanitizer; return LD_PRELOAD with it and the sanitizer's
    library.
    """
    found = sanitizer_runtime(runtime)
    library = folder / "libhvbcast.so"
    words = [*FLAGS, *SHARED_LIBRARY, f"-fsanitize={sanitizer}", "-o", str(library), *BROADCAST, "-ldl"]
    subprocess.run(["cc", *words], check=True)
    return f"{found}:{library}"


@pytest.fixture(scope="module")
def address_sanitizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sanitized(tmp_path_factory.mktemp("sanitized"), "address,undefined", "libasan.so")


@pytest.mark.parametrize("program", ["broadcasts", "by_table", "switches"])
def test_address_sanitizer_finds_nothing(open_mpi: Mpi, address_sanitizer: str, tmp_path: Path, program: str) -> None:
    table = write_table(tmp_path, table_for(3, "openmpi"))
    # Open MPI's own leaks and undefined arithmetic are not tested here.
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "HVBCAST_TABLE": str(table)}
    words = [sys.executable, "-c", PRELOADED, address_sanitizer, str(open_mpi.compile(program, PROGRAMS))]
    done = open_mpi.start(3, [*words, "", "two-level", "chain"], options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Sanitizer" not in done.stderr
    assert "runtime error" not in done.stderr


def test_a_channel_that_another_thread_frees_is_not_read(tmp_path: Path) -> None:
    program = tmp_path / "freed_channel"
    others = [source for source in BROADCAST if not source.endswith("/channel.c")]
    words = ["-fsanitize=address,undefined", "-o", str(program), str(PROGRAMS / "freed_channel.c"), *others, "-ldl"]
    subprocess.run(["cc", *FLAGS, *words], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_thread_sanitizer_finds_nothing(open_mpi: Mpi, tmp_path: Path) -> None:
    preload = sanitized(tmp_path, "thread", "libtsan.so")
    table = write_table(tmp_path, table_for(2, "openmpi"))
    options = {
        # Open MPI is not instrumented; only the broadcast is tested.
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
        # UCX intercepts madvise and PMIx needs a fixed address: both conflict with
        # ThreadSanitizer's use of memory.
        "UCX_MEM_EVENTS": "no",
        "PMIX_MCA_gds": "hash",
        "HVBCAST_TABLE": str(table),
        **COUNTS,
    }
    words = [sys.executable, "-c", PRELOADED, preload, str(open_mpi.compile("by_table", PROGRAMS))]
    done = open_mpi.start(2, words, options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ThreadSanitizer" not in done.stderr
    assert messages(done) == [counts_by_table(2)]
