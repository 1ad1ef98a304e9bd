"""Requests for applications, rejected requests, and validation of results."""

import json
import math
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hvscale.bench.applications import APPLICATIONS, PROGRAMS, Application, parse_sizes
from hvscale.bench.applications.build import COMMON, Compiler, label, parse_flags
from hvscale.bench.applications.counters import Counters, read_counters, with_perf
from hvscale.bench.applications.document import ApplicationDocument
from hvscale.bench.applications.programs.integration import INTEGRAL, IntegrationResult
from hvscale.bench.applications.study import ApplicationStudy
from hvscale.core.documents import from_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Host, Library, RunFolder, RunRecord
from hvscale.launch.controller import RunInterruptedError
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.report.progress import RunProgress
from tests.conftest import PROGRAMS as ENVIRONMENT_BIN

DEFAULT_LAUNCH = LaunchOptions()


@pytest.mark.parametrize("name", ["integration", "merge_sort", "network", "stencil"])
def test_every_program_is_described(name: str) -> None:
    application = APPLICATIONS.get(name)
    assert name in APPLICATIONS.names()
    assert application.name == name
    for np in application.default_np:
        assert application.unsupported_reason(np, parse_sizes(application, [])) is None


@pytest.mark.parametrize(
    ("requests", "sizes"),
    [
        ([], {"intervals": 4 * 10**8, "packets": 1000}),
        (["packets=7"], {"intervals": 4 * 10**8, "packets": 7}),
        (["packets=7", "full"], {"intervals": 55 * 10**10, "packets": 7}),
    ],
)
def test_sizes(requests: list[str], sizes: dict[str, int]) -> None:
    assert parse_sizes(APPLICATIONS.get("integration"), requests) == sizes


@pytest.mark.parametrize(
    "request_", ["packets", "packets=0", "packets=-1", "packets=1.5", "packets=", "cells=3", "large"]
)
def test_an_invalid_size_is_rejected(request_: str) -> None:
    with pytest.raises(RequestError, match=f"--size {request_}: "):
        parse_sizes(APPLICATIONS.get("integration"), [request_])


def test_flags_are_split_into_words_without_a_shell() -> None:
    assert parse_flags(["-O2", '-O3 -DNAME="a b; rm -r /"', ""]) == {
        "-O2": ["-O2"],
        "-O3 '-DNAME=a b; rm -r /'": ["-O3", "-DNAME=a b; rm -r /"],
        "": [],
    }
    with pytest.raises(RequestError, match="No closing quotation"):
        parse_flags(["-O2 'x"])
    with pytest.raises(RequestError, match="given twice"):
        parse_flags(["-O2 -g", "-O2  -g"])


def test_different_flags_have_different_labels() -> None:
    texts = [
        "",
        "-O2",
        "-O3",
        "-O3 -march=native",
        "-O3-march=native",
        "-O3 -march native",
        "-O3 " + "-g " * 50,
        "../..",
    ]
    labels = [label(text) for text in texts]
    assert len(set(labels)) == len(texts)
    assert labels[1] == "O2"
    assert not any("/" in each or each.startswith(".") for each in labels)


def study(name: str, launch: LaunchOptions = DEFAULT_LAUNCH, **changed: Any) -> ApplicationStudy:
    """The study of `hvscale bench app NAME`; `changed` replaces default options."""
    options: dict[str, Any] = {
        **{"flags": ["-O2"], "ranks": None, "repeats": 1, "size": [], "count": False, "path": None},
    }
    return ApplicationStudy.of(name, options=launch, **{**options, **changed})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "stencl",
            {},
            r"stencl: unknown application; did you mean stencil\? Known: integration, merge_sort, network, stencil",
        ),
        (
            "integration",
            {"ranks": "1"},
            "--np 1: integration: it needs a master and at least one worker",
        ),
        ("merge_sort", {"ranks": "2,6"}, "--np 6: merge_sort: .* power of two, such as 4 or 8"),
        ("network", {"ranks": "3"}, "np must be even"),
        ("stencil", {"ranks": "7", "size": ["x=6", "y=5", "z=4"]}, "6 x 5 x 4 cells cannot be divided into 7 cuboids"),
        (
            "stencil",
            {"size": ["x=100000000000"]},
            "16 bytes for each of 100000000000 x 200 x 300 cells.* are free here",
        ),
        (
            "merge_sort",
            {"size": ["samples=1000000000000000"]},
            "12 bytes for each of 1000000000000000 samples on 0 levels",
        ),
        ("stencil", {"repeats": 0}, "--repeat 0: must be at least 1"),
        ("stencil", {"flags": ["-O2 '"]}, "No closing quotation"),
        (
            "stencil",
            {"launch": LaunchOptions(mpi="gloo")},
            "--mpi gloo does not provide MPI, which these programs need",
        ),
        ("stencil", {"launch": LaunchOptions.of(placement="host,host")}, "name each once"),
        ("stencil", {"launch": LaunchOptions.of(placement="host,moon")}, "--placement moon: unknown placement"),
        ("stencil", {"launch": LaunchOptions.of(link="1gbit")}, "--link does not apply to --placement host"),
    ],
)
def test_an_invalid_request_is_rejected(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        study(name, **options)


def test_a_cgroup_s_limit_counts_for_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1048576\n")
    (tmp_path / "memory.current").write_text("0\n")
    monkeypatch.setattr("hvscale.bench.collectives.memory.CGROUP", tmp_path)
    with pytest.raises(RequestError, match=r"merge_sort needs .*, and 1 MiB are free here: choose a smaller --size"):
        study("merge_sort")


def test_a_missing_compiler_is_reported_with_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder contains mpirun but no mpicc."""
    (tmp_path / "mpirun").symlink_to(ENVIRONMENT_BIN / "mpirun")
    monkeypatch.setenv("PATH", f"{tmp_path}:{ENVIRONMENT_BIN}:/usr/bin:/bin")
    with pytest.raises(RequestError, match=f"no mpicc next to {tmp_path}/mpirun: run `make setup`"):
        study("stencil")


def test_a_folder_with_other_sizes_is_not_resumed(tmp_path: Path) -> None:
    before = study("stencil", path=tmp_path, size=["x=10"])
    before.write("running")
    with pytest.raises(RequestError, match="holds another study: its sizes differs"):
        study("stencil", path=tmp_path, size=["x=11"]).measure(RunProgress(1, 1), warn=lambda text: None)
    assert [file.name for file in tmp_path.iterdir()] == ["bench-app.json"]


def test_a_resumed_study_that_does_not_compile_fails(tmp_path: Path) -> None:
    resumed = study("stencil", path=tmp_path, flags=["-no-such-flag"])
    resumed.write("running")
    (tmp_path / "np-1-repeat-1").mkdir()
    with pytest.raises(RequestError, match="no-such-flag"):
        resumed.measure(RunProgress(1, 1), warn=lambda text: None)
    assert json.loads((tmp_path / "bench-app.json").read_text())["state"] == "failed"


def test_the_reference_run_has_a_node_for_its_rank_and_a_rejected_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(application: Application, words: list[str], compiler: Compiler, options: LaunchOptions, to: Path) -> Path:
        to.mkdir(parents=True)
        return to / application.name

    def launch(command: list[str], options: LaunchOptions, hooks: LaunchHooks) -> None:
        assert (options.np, options.placement.nodes) == (1, 1)
        raise RequestError("rejected")

    monkeypatch.setattr("hvscale.bench.applications.study.build", build)
    monkeypatch.setattr("hvscale.bench.applications.study.launch", launch)
    on_two_nodes = study("stencil", path=tmp_path / "new", ranks="2")
    on_two_nodes.places = {"host": PlacementOptions(placement="netns", nodes=2)}
    with pytest.raises(RequestError, match="rejected"):
        on_two_nodes.measure(RunProgress(1, 1), warn=lambda text: None)
    assert not any(tmp_path.iterdir())


def test_a_resumed_study_keeps_all_results_and_makes_its_tables_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the finished runs is repeated and interrupted."""
    launched: list[str] = []
    is_interrupted = False

    def launch(command: list[str], options: LaunchOptions, hooks: LaunchHooks) -> None:
        run = RunFolder.create(options.run or tmp_path)
        launched.append(run.path.name)
        if is_interrupted:
            run.unlock()
            raise RunInterruptedError(signal.SIGINT, run)
        record = RunRecord(
            command=command,
            np=options.np,
            state="finished",
            library=Library(flavour="openmpi", version="5"),
            host=Host(name="h", kernel="k", cpu="c", cores=2, memory_bytes=1),
            working_directory="/",
            started_at=datetime.now(UTC),
        )
        run.write(record)
        run.log(0).parent.mkdir(exist_ok=True)
        run.log(0).write_text(json.dumps({"seconds": 1.0, "checksum": "a", "blocks": [1, 1, 2]}) + "\n")
        run.unlock()

    monkeypatch.setattr("hvscale.bench.applications.study.launch", launch)
    monkeypatch.setattr("hvscale.bench.applications.study.build", lambda *arguments: tmp_path / "program")

    monkeypatch.setattr("hvscale.bench.applications.study.read_counters", lambda *arguments: Counters())

    def measure(ranks: str) -> None:
        made = study("stencil", path=tmp_path / "study", ranks=ranks, repeats=2, count=True)
        made.measure(RunProgress(1, 1), warn=lambda text: None)

    def runs() -> list[tuple[int, int, str | None]]:
        document = from_json(ApplicationDocument, (tmp_path / "study/bench-app.json").read_text())
        assert [(row.np, row.runs) for row in document.rows] == [(2, 2)]
        assert [row.np for row in document.counters] == [2]
        return [(run.np, run.repeat, run.problem) for run in document.runs]

    measure("2")
    reference, *on_two = runs()
    assert (reference, on_two) == ((1, 0, None), [(2, 1, None), (2, 2, None)])

    is_interrupted = True
    # np 1 is new, so the finished runs are checked against the reference of the earlier call.
    with pytest.raises(RunInterruptedError):
        measure("1,2")
    assert runs() == [(1, 1, "interrupted"), *on_two]
    with pytest.raises(RunInterruptedError):
        measure("2,4")
    assert runs() == [reference, on_two[0], (4, 1, "interrupted"), on_two[1]]

    launched.clear()
    tabulated: list[int] = []
    tabulate = ApplicationDocument.tabulate

    def counted(document: ApplicationDocument) -> None:
        tabulated.append(len(document.runs))
        tabulate(document)

    monkeypatch.setattr(ApplicationDocument, "tabulate", counted)
    measure("2")
    assert (runs(), launched) == ([reference, *on_two], [])
    assert tabulated == [3, 3]  # before and after the rounds


def test_a_round_runs_every_variant_once() -> None:
    document = study("merge_sort", ranks="4,1", flags=["-O2", "-O3"]).document
    # np 1 runs first, because the results of the others may be checked against it.
    assert [str(variant) for variant in document.variants()] == [
        "-O2, host, np 1",
        "-O3, host, np 1",
        "-O2, host, np 4",
        "-O3, host, np 4",
    ]
    assert document.compiler.path == str(ENVIRONMENT_BIN / "mpicc")


def midpoint(intervals: int) -> float:
    width = 99 / intervals
    return math.fsum(width / (2 + (i + 0.5) * width) for i in range(intervals))


@pytest.mark.parametrize("intervals", [1, 2, 10, 1000, 10**5])
def test_an_integral_is_valid_within_the_error_of_the_midpoint_rule(intervals: int) -> None:
    application, sizes = APPLICATIONS.get("integration"), {"intervals": intervals, "packets": 10}
    right = IntegrationResult(seconds=1, integral=midpoint(intervals), packets_per_worker=[4, 6])
    assert application.check_result(right, sizes, None) is None
    off = 2 * (99 / intervals) ** 2
    wrong = right.model_copy(update={"integral": INTEGRAL + off})
    assert "the integral is" in (application.check_result(wrong, sizes, None) or "")
    assert "the integral is" in (
        application.check_result(right.model_copy(update={"integral": math.nan}), sizes, None) or ""
    )
    lost = right.model_copy(update={"packets_per_worker": [4, 5]})
    assert application.check_result(lost, sizes, None) == "the workers returned 9 of 10 packets"


def result_of(application: Application, **values: object) -> object:
    return application.result.model_validate({"seconds": 1, **values})


def test_wrong_results_are_rejected() -> None:
    sort = APPLICATIONS.get("merge_sort")
    for values, problem in [
        ({"sorted": True, "checksum_after": "a"}, None),
        ({"sorted": False, "checksum_after": "a"}, "the samples are not sorted"),
        ({"sorted": True, "checksum_after": "b"}, "the sorted samples are not a permutation of the input"),
    ]:
        assert sort.check_result(result_of(sort, checksum_before="a", **values), {}, None) == problem
    stencil = APPLICATIONS.get("stencil")
    serial = result_of(stencil, checksum="1", blocks=(1, 1, 1))
    assert stencil.check_result(result_of(stencil, checksum="1", blocks=(1, 2, 1)), {}, serial) is None
    assert "differ from those" in (
        stencil.check_result(result_of(stencil, checksum="2", blocks=(1, 2, 1)), {}, serial) or ""
    )


# Output of perf 6.1: on a machine that supports two of the events, and on one that supports all.
# ":u" marks events counted in user mode only, as without privileges.
SOME_SUPPORTED = """{"seconds": 0.1}
211.20,msec,task-clock,211204334,100.00,0.915,CPUs utilized
12,,context-switches,211204334,100.00,56.8,/sec
<not supported>,,cache-misses,0,100.00,,
<not supported>,,instructions,0,100.00,,
<not supported>,,cycles,0,100.00,,
"""
ALL_SUPPORTED = """
100.00,msec,task-clock:u,1,100.00,,
3,,context-switches:u,1,100.00,,
40,,cache-misses:u,1,100.00,,
3000,,instructions:u,1,100.00,2.0,insn per cycle
1500,,cycles:u,1,100.00,,
"""


def test_counters_are_summed_over_ranks_and_none_if_not_supported(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    run.log(0).write_text(SOME_SUPPORTED.replace("\n", "\r\n"))
    run.log(1).write_text(SOME_SUPPORTED)
    assert read_counters(run, 2) == Counters(task_clock_seconds=2 * 211.20 * 1e-3, context_switches=24)
    run.log(0).write_text(ALL_SUPPORTED)
    run.log(1).write_text(ALL_SUPPORTED)
    counted = read_counters(run, 2)
    assert counted.cache_misses == 80
    assert counted.instructions_per_cycle == pytest.approx(2)
    run.log(1).write_text("perf: not permitted\n")
    with pytest.raises(RequestError, match="perf printed no counts"):
        read_counters(run, 2)


def test_every_source_belongs_to_a_program() -> None:
    there = {file.name for file in PROGRAMS.iterdir() if file.suffix in (".c", ".h")}
    assert there == {source for name in APPLICATIONS.names() for source in APPLICATIONS.get(name).sources} | {
        *COMMON,
        "decomposition.h",
    }


def test_missing_perf_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="perf is not installed"):
        with_perf(["program"])


def test_the_memory_of_a_stencil_includes_its_halo() -> None:
    needed, how = APPLICATIONS.get("stencil").memory(1, {"x": 10**9, "y": 1, "z": 1})
    assert (needed, how) == (
        16 * (10**9 + 2) * 9,
        "16 bytes for each of 1000000000 x 1 x 1 cells and of the halo around them",
    )
