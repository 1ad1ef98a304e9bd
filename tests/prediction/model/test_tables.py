"""Measured all-reduces from the documents of `bench` and `tune-collectives`."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvscale.bench.collectives.document import BackendRun, BenchDocument, make_row
from hvscale.bench.collectives.request import MeasuredSize
from hvscale.comm_tuning.collectives.decide.measurements import AlgorithmChoice, Measurements, Point
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument, TuningJob
from hvscale.core.documents import to_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Host, Library, NodeRecord, RunRecord
from hvscale.launch.options import LaunchOptions
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.measured_costs import fit_costs
from hvscale.prediction.model.samples import undisturbed
from hvscale.prediction.model.tables import of_runs, table_samples, with_algorithm
from hvscale.prediction.predict import PredictionRequest, matching_samples
from hvscale.prediction.settings import PredictedSettings

SIZES = [8, 4096, 65536, 1 << 20]
SAMPLES = 5
RING_SECONDS = {size: 2e-4 + size * 2.2e-8 for size in SIZES}


def write_run(folder: Path, np_: int, **changes: Any) -> None:
    """A run of `np_` nodes on links of 100 Mbit/s."""
    folder.mkdir(parents=True)
    record = RunRecord(
        state="finished",
        command=["python"],
        np=np_,
        library=Library(flavour="openmpi", version="5.0.11"),
        placement="netns",
        placement_settings={"link": "100mbit"},
        nodes=[NodeRecord(name=f"n{rank}", address="10.0.0.1", interface="eth0", ranks=[rank]) for rank in range(np_)],
        host=Host(name="here", kernel="k", cpu="c", cores=2, memory_bytes=1),
        working_directory="/",
        started_at=datetime(2026, 11, 23, tzinfo=UTC),
        **changes,
    )
    (folder / "run.json").write_text(to_json(record))


def bench(folder: Path, collective: str = "allreduce", in_place: tuple[bool, ...] = (False, True)) -> BenchDocument:
    """In place, a call takes what RING_SECONDS says; out of place, twice as long."""
    return BenchDocument(
        state="finished",
        folder=str(folder),
        collective=collective,
        np=4,
        dtype="float32",
        device="cpu",
        root=0,
        reduction="sum",
        in_place="both",
        iterations="20",
        warmup="3",
        until_interval_percent=None,
        launch=LaunchOptions(np=4),
        backends=[BackendRun(name="openmpi", backend="openmpi", path="host", flavour="openmpi", run="openmpi")],
        rows=[
            make_row(
                "openmpi",
                MeasuredSize(
                    bytes=size,
                    count=size // 4,
                    in_place=inside,
                    calls_per_sample=1,
                    seconds=[RING_SECONDS[size] * (1 if inside else 2)] * SAMPLES,
                    rank_seconds=[RING_SECONDS[size]] * 4,
                ),
                1.5,
            )
            for size in SIZES
            for inside in in_place
        ],
    )


@pytest.fixture
def bench_folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "bench/openmpi", 4)
    (tmp_path / "bench/bench.json").write_text(to_json(bench(tmp_path / "bench")))
    return tmp_path / "bench"


@pytest.fixture
def study_folder(tmp_path: Path) -> Path:
    """All-reduces of the library's own choice and of ring on 2 and 4 ranks, and broadcasts."""
    folder = tmp_path / "study"
    choices = [
        AlgorithmChoice(),
        AlgorithmChoice(library_algorithm="auto"),
        AlgorithmChoice(library_algorithm="ring"),
        AlgorithmChoice(library_algorithm="segmented_ring", segment_bytes=8192),
    ]
    points = [
        Point(
            operation="allreduce", np=np_, ranks_per_node=1, bytes=size, choice=choice, seconds=[seconds, 3 * seconds]
        )
        for np_ in (2, 4)
        for number, choice in enumerate(choices, 1)
        for size in reversed(SIZES)
        for seconds in [number * RING_SECONDS[size]]
    ]
    wrong = Point(operation="allreduce", np=2, ranks_per_node=1, bytes=16, seconds=[1.0], wrong=3)
    limited = Point(operation="allreduce", np=2, ranks_per_node=1, bytes=16, eager_limit_bytes=8192, seconds=[1.0])
    points += [wrong, limited, Point(operation="broadcast", np=2, ranks_per_node=1, bytes=8, seconds=[1.0])]
    document = TuneCollectivesDocument(
        state="finished",
        folder=str(folder),
        mpi="openmpi",
        np=4,
        nps=[2, 4],
        operations=["broadcast", "allreduce"],
        sizes={"allreduce": SIZES},
        eager_limits=[None],
        launch=LaunchOptions(np=4),
        measurements=Measurements(mpi="openmpi", points=points),
    )
    for np_ in (2, 4):
        write_run(folder / f"np-{np_}", np_)
        document.jobs.append(TuningJob(np=np_, operation="allreduce", eager_limit_bytes=None, run=f"np-{np_}"))
    document.tabulate()
    (folder / "tune-collectives.json").write_text(to_json(document))
    return folder


@pytest.mark.parametrize("name", ["", "bench.json"])
def test_bench_gives_the_times_in_place(bench_folder: Path, name: str) -> None:
    (found,) = table_samples(bench_folder / name)
    assert (found.np, found.nodes, found.ranks_per_core) == (4, 4, 2.0)
    assert (found.bytes_per_second, found.library, found.algorithm) == (12.5e6, "openmpi 5.0.11", None)
    assert found.bytes.tolist() == SIZES
    assert found.seconds.tolist() == pytest.approx([*RING_SECONDS.values()])
    assert found.idle_seconds.tolist() == [0.0] * len(SIZES)
    assert found.agreements.tolist() == pytest.approx([RING_SECONDS[8]])


def test_bench_out_of_place_counts_where_nothing_else_was_measured(bench_folder: Path) -> None:
    (bench_folder / "bench.json").write_text(to_json(bench(bench_folder, in_place=(False,))))
    (found,) = table_samples(bench_folder)
    assert found.seconds.tolist() == pytest.approx([2 * seconds for seconds in RING_SECONDS.values()])


@pytest.mark.parametrize(
    "launch", [{"set": ["allreduce-algorithm=ring"]}, {"env": ["OMPI_MCA_coll_tuned_allreduce_algorithm=4"]}]
)
def test_a_bench_of_one_algorithm_names_it(bench_folder: Path, launch: dict[str, Any], tmp_path: Path) -> None:
    write_run(tmp_path / "other", 4, launch=launch)
    (tmp_path / "other/run.json").replace(bench_folder / "openmpi/run.json")
    (found,) = table_samples(bench_folder)
    assert found.algorithm == "ring"
    assert fit_costs([found], None).formula.algorithm == "ring"


def test_large_messages_say_nothing_about_agreements(bench_folder: Path) -> None:
    document = bench(bench_folder)
    document.rows = [row for row in document.rows if row.bytes > 1024]
    (bench_folder / "bench.json").write_text(to_json(document))
    (found,) = table_samples(bench_folder)
    assert len(found.agreements) == 0


def test_a_study_of_collectives_gives_each_algorithm_and_np(study_folder: Path) -> None:
    found = {(one.np, one.algorithm): one for one in table_samples(study_folder)}
    # Points with another eager limit or segment, or with wrong results, are left out.
    assert found.keys() == {(2, None), (2, "ring"), (4, None), (4, "ring")}
    for (np_, algorithm), one in found.items():
        factor = 2 * (1 if algorithm is None else 3)
        assert one.nodes == np_
        assert one.bytes.tolist() == SIZES
        assert one.seconds.tolist() == pytest.approx([factor * seconds for seconds in RING_SECONDS.values()])
        assert one.agreements.tolist() == pytest.approx([factor * RING_SECONDS[8]])
    costs = fit_costs([one for one in found.values() if one.algorithm == "ring"], None)
    assert costs.message_seconds(np.array([float(1 << 20)]), 4) == pytest.approx(found[4, "ring"].seconds[-1], rel=0.2)


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.update(schema="hvscale/bench/1"), "an older hvscale"),
        (lambda text: text.update(schema="hvscale/bench/9"), "a newer hvscale"),
        (lambda text: text.update(schema="hvscale/scale/2"), "not a table of measured all-reduces"),
        (lambda text: text.pop("schema"), "not a table of measured all-reduces"),
        (lambda text: text.update(collective="broadcast"), "it measured broadcast"),
        (lambda text: text.update(rows=[]), "it measured nothing"),
        (lambda text: text["rows"][0].update(seconds=0), r"invalid: rows\.0\.seconds"),
        (lambda text: text["rows"][0].update(seconds="NaN"), r"invalid: rows\.0\.seconds"),
        (lambda text: text["rows"][0].update(bytes=-1), r"invalid: rows\.0\.bytes"),
        (lambda text: text.update(np=1), "invalid: np"),
        (lambda text: text["backends"][0].update(backend="horovod-openmpi"), "measure the library itself"),
        (lambda text: text["backends"][0].update(path="nccl"), "measure the library itself"),
        (lambda text: text["backends"][0].update(run="gone"), "run folder gone is missing"),
        (lambda text: text["backends"][0].update(run="../bench/openmpi"), "is missing"),
    ],
)
def test_a_file_that_is_no_table_is_refused(bench_folder: Path, edit: Edit, message: str) -> None:
    document = json.loads((bench_folder / "bench.json").read_text())
    edit(document)
    (bench_folder / "bench.json").write_text(json.dumps(document))
    with pytest.raises(RequestError, match=message) as caught:
        table_samples(bench_folder)
    assert str(caught.value).startswith(f"--from-table {bench_folder / 'bench.json'}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"3", b"[" * 100_000])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bench.json").write_bytes(content)
    with pytest.raises(RequestError, match="give the folder of `hvscale bench allreduce`"):
        table_samples(tmp_path / "bench.json")


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file"):
        table_samples(tmp_path / "gone.json")
    with pytest.raises(RequestError, match=r"has no bench\.json or tune-collectives\.json"):
        table_samples(tmp_path)


def test_a_study_without_all_reduces_is_refused(study_folder: Path) -> None:
    document = json.loads((study_folder / "tune-collectives.json").read_text())
    points = document["measurements"]["points"]
    document["measurements"]["points"] = [point for point in points if point["operation"] == "broadcast"]
    (study_folder / "tune-collectives.json").write_text(json.dumps(document))
    with pytest.raises(RequestError, match="it measured broadcast, and predictions need all-reduces"):
        table_samples(study_folder)


def test_a_table_gives_the_algorithm_of_the_runs_or_the_asked_one(study_folder: Path, bench_folder: Path) -> None:
    tables = table_samples(study_folder)
    own, rings = ([one for one in tables if one.algorithm == name] for name in (None, "ring"))
    assert with_algorithm(tables, [], None) == own
    assert with_algorithm(rings, [], None) == rings
    assert with_algorithm(tables, rings, None) == rings
    assert with_algorithm(tables, own, "ring") == rings
    assert with_algorithm([], own, "recursive_doubling") == []
    with pytest.raises(
        RequestError, match="no all-reduces by recursive_doubling; measured: ring, the library's own choice"
    ):
        with_algorithm(tables, own, "recursive_doubling")
    with pytest.raises(RequestError, match="no all-reduces by ring; measured: the library's own choice"):
        with_algorithm(table_samples(bench_folder), rings, None)


def test_of_tables_of_several_libraries_the_runs_choose_one(study_folder: Path) -> None:
    one = table_samples(study_folder)
    other = [replace(samples, library="mpich 4.2") for samples in one]
    assert of_runs(one + other, other[:1]) == other
    assert of_runs(one + other, []) == one + other
    assert of_runs(one, other) == one


def test_agreements_of_runs_count_before_those_of_tables(study_folder: Path) -> None:
    own = [one for one in table_samples(study_folder) if one.algorithm is None]
    replay = replace(own[0], from_benchmark=False, agreements=np.array([0.5]))
    silent = replace(replay, agreements=np.empty(0))
    of_tables = fit_costs(own, None).agreement_seconds(2)
    assert 0 < of_tables < 0.01
    assert fit_costs([*own, silent], None).agreement_seconds(2) == of_tables
    assert fit_costs([*own, replay], None).agreement_seconds(2) == pytest.approx(0.5)


@pytest.mark.parametrize(("algorithm", "from_training"), [(None, True), ("ring", False)])
def test_agreements_of_runs_whose_messages_do_not_count_do_not_either(
    study_folder: Path, algorithm: str | None, from_training: bool
) -> None:
    """A training beside a table, and a replay with another algorithm than is predicted."""
    tables = table_samples(study_folder)
    run = replace(tables[0], from_benchmark=False, from_training=from_training, agreements=np.array([0.5]))
    assert run.algorithm is None
    chosen = with_algorithm(tables, [run], algorithm)
    settings = PredictedSettings(HorovodSettings(), algorithm)
    used = undisturbed(matching_samples([run, *chosen], settings, PredictionRequest(np=[8])))
    found = fit_costs(used, None).agreement_seconds(8)
    assert found == fit_costs(chosen, None).agreement_seconds(8) > 0
