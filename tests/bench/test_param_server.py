"""The parameter-server benchmark: its tables, its memory use, and rejected requests."""

import math
from pathlib import Path
from typing import Any

import pytest

from hvscale.bench.collectives import backends, memory
from hvscale.bench.collectives.memory import check_memory, server_blocks
from hvscale.bench.param_server.document import BestAndWorst, ParamServerDocument, ParamServerRun
from hvscale.bench.param_server.output import lines, page, tables
from hvscale.bench.param_server.study import ParamServerOptions, ParamServerStudy
from hvscale.cli.launch_options import resolve
from hvscale.core.errors import RequestError
from hvscale.core.host import gpus
from hvscale.launch.options import LaunchOptions
from hvscale.studies.base import load_previous

STUDENT_T_2_DEGREES = 4.302652729911275  # the 95 % confidence interval
# Operation, back end, placement and workers: the samples of each start.
Measured = dict[tuple[str, str, str, int], list[list[float]]]


def document(measured: Measured) -> ParamServerDocument:
    made = ParamServerDocument(
        folder="measured",
        bytes=1 << 30,
        dtype="float32",
        device="cpu",
        operations=list(dict.fromkeys(operation for operation, *_ in measured)),
        backends=list(dict.fromkeys(backend for _, backend, *_ in measured)),
        placements=list(dict.fromkeys(placement for *_, placement, _ in measured)),
        workers=sorted({workers for *_, workers in measured}),
        repeats=3,
        iterations=1,
        warmup=0,
        check=True,
        launch=LaunchOptions(),
    )
    for (operation, backend, placement, workers), starts in measured.items():
        for repeat, seconds in enumerate(starts, 1):
            run = ParamServerRun(
                operation=operation,
                backend=backend,
                placement=placement,
                workers=workers,
                repeat=repeat,
                folder="run",
                seconds=seconds,
                problem=None if seconds else "rank 1 failed",
            )
            made.runs.append(run)
    made.tabulate()
    return made


def test_best_and_worst_equal_those_of_the_study() -> None:
    """The study reports that the best saves 75 % for broadcast and gather, 93 % for all-reduce."""
    study: Measured = {
        ("broadcast", "openmpi-aware", "docker:node", 4): [[0.436]],
        ("broadcast", "openmpi-staged", "docker:rank", 4): [[1.255]],
        ("broadcast", "nccl-openmpi", "docker:rank", 4): [[1.747]],
        ("gather", "openmpi-aware", "docker:node", 4): [[1.108]],
        ("gather", "nccl-openmpi", "docker:rank", 4): [[4.456]],
        ("allreduce", "openmpi-aware", "docker:rank", 4): [[3.201]],
        ("allreduce", "nccl-openmpi", "docker:node", 4): [[0.208]],
    }
    found = {one.operation: one for one in document(study).best_and_worst}
    assert {name: int(one.saved_percent or 0) for name, one in found.items()} == {
        "broadcast": 75,
        "gather": 75,
        "allreduce": 93,
    }
    assert (found["broadcast"].best.placement, found["broadcast"].best.seconds) == ("docker:node", 0.436)
    assert (found["broadcast"].worst.backend, found["broadcast"].worst.placement) == ("nccl-openmpi", "docker:rank")
    assert (found["gather"].saved_percent_low, found["gather"].saved_percent_high) == (None, None)


def test_the_saving_is_computed_within_rounds_with_an_interval() -> None:
    fast, slow = [1.0, 2.0, 1.5], [4.0, 6.0, 7.0]
    found = document(
        {
            ("gather", "openmpi", "host", 2): [[value, value] for value in fast],
            ("gather", "gloo", "host", 2): [[value] for value in slow],
        }
    )
    logs = [math.log(one / other) for one, other in zip(fast, slow, strict=True)]
    mean = sum(logs) / 3
    half_width = STUDENT_T_2_DEGREES * math.sqrt(sum((one - mean) ** 2 for one in logs) / 2 / 3)
    [extremes] = found.best_and_worst
    assert extremes.saved_percent == pytest.approx(100 * (1 - math.exp(mean)))
    assert extremes.saved_percent_low == pytest.approx(100 * (1 - math.exp(mean + half_width)))
    assert extremes.saved_percent_high == pytest.approx(100 * (1 - math.exp(mean - half_width)))
    row = found.rows[0]
    assert (row.backend, row.starts, row.samples) == ("openmpi", 3, 6)
    assert row.seconds == pytest.approx(3 ** (1 / 3))
    assert (row.seconds_min, row.seconds_p50, row.seconds_max) == (1, 1.5, 2)


def test_the_interval_of_one_start_comes_from_its_samples() -> None:
    found = document(
        {("broadcast", "openmpi", "host", 2): [[1.0, 2.0, 6.0]], ("gather", "openmpi", "host", 2): [[1.0]]}
    )
    several, one = found.rows
    half_width = STUDENT_T_2_DEGREES * math.sqrt((4 + 1 + 9) / 2 / 3)
    assert [several.seconds, several.seconds_low, several.seconds_high] == pytest.approx(
        [3, 3 - half_width, 3 + half_width]
    )
    assert (one.seconds, one.seconds_low, one.seconds_high) == (1, None, None)


def test_best_and_worst_are_found_per_number_of_workers_and_overall() -> None:
    found = document(
        {
            ("broadcast", "openmpi", "host", 1): [[1.0]],
            ("broadcast", "gloo", "host", 1): [[2.0]],
            ("broadcast", "openmpi", "host", 2): [[3.0]],
            ("broadcast", "gloo", "host", 2): [[4.0]],
        }
    )

    def names(one: BestAndWorst) -> tuple[int | None, str, int, str, int]:
        return one.workers, one.best.backend, one.best.workers, one.worst.backend, one.worst.workers

    assert list(map(names, found.best_and_worst)) == [
        (1, "openmpi", 1, "gloo", 1),
        (2, "openmpi", 2, "gloo", 2),
        (None, "openmpi", 1, "gloo", 2),
    ]


def test_server_time_is_that_of_broadcast_plus_gather() -> None:
    measured: Measured = {
        ("broadcast", "openmpi", "host", 2): [[1.0], [2.0]],
        ("gather", "openmpi", "host", 2): [[3.0], [2.0]],
        ("allreduce", "openmpi", "host", 2): [[1.0], [1.0]],
        ("allreduce", "gloo", "host", 2): [[1.0], [1.0]],
    }
    [found] = document(measured).step_exchanges
    assert (found.backend, found.allreduce_seconds) == ("openmpi", 1)
    assert [found.server_seconds, found.saved_percent, found.saved_percent_low] == pytest.approx([4, 75, 75])


def test_seconds_and_savings_are_of_the_rounds_that_all_have() -> None:
    """The first round was slow for all, and the slower library failed in the second."""
    measured: Measured = {
        ("gather", "openmpi", "host", 2): [[4.0], [1.0], [1.0]],
        ("gather", "gloo", "host", 2): [[3.0], []],
        ("broadcast", "openmpi", "host", 2): [[4.0], [1.0], []],
        ("allreduce", "openmpi", "host", 2): [[2.0], [], [0.1]],
    }
    found = document(measured)
    assert [(row.backend, row.starts) for row in found.rows][:2] == [("openmpi", 3), ("gloo", 1)]
    [extremes] = found.best_and_worst
    assert (extremes.best.backend, extremes.best.seconds, extremes.best.starts) == ("gloo", 3, 1)
    assert (extremes.worst.backend, extremes.worst.seconds, extremes.worst.starts) == ("openmpi", 4, 1)
    assert extremes.saved_percent == pytest.approx(25)
    [exchange] = found.step_exchanges
    assert (exchange.server_seconds, exchange.allreduce_seconds) == (8, 2)
    assert exchange.saved_percent == pytest.approx(75)


def test_without_a_common_round_nothing_is_compared() -> None:
    found = document({("gather", "openmpi", "host", 2): [[], [1.0]], ("gather", "gloo", "host", 2): [[2.0], []]})
    assert (len(found.rows), found.best_and_worst) == (2, [])


def test_a_failed_start_is_in_no_table() -> None:
    measured: Measured = {("gather", "openmpi", "host", 2): [[1.0], []], ("gather", "gloo", "host", 2): [[]]}
    found = document(measured)
    assert [(row.backend, row.starts) for row in found.rows] == [("openmpi", 1)]
    assert found.best_and_worst == []


def test_tables_and_page_show_the_document() -> None:
    measured: Measured = {
        ("broadcast", "openmpi", "host", 2): [[1.0], [2.0]],
        ("broadcast", "<gloo>", "host", 2): [[1.5], [1.5]],
    }
    found = document(measured)
    latencies, extremes = tables(found)
    assert list(latencies.groups) == ["broadcast, workers 2"]
    best, worst = extremes.groups["broadcast, workers 2"]
    assert best == ["best: openmpi, host", "2", "1.41 s", "no difference", "> factor 100"]
    assert worst == ["worst: <gloo>, host", "2", "1.5 s", "", ""]
    measured |= {("broadcast", "openmpi", "host", 4): [[1.0], [1.1], [1.3]], ("broadcast", "failed", "host", 4): []}
    asymmetric = document(measured)
    row = asymmetric.rows[-1]
    drawn = lines(asymmetric, "broadcast").data[0].error_y
    # The interval of two starts is wider than a factor of 100, as the table says.
    assert list(drawn.array) == pytest.approx([0, (row.seconds_high or 0) - row.seconds])
    assert list(drawn.arrayminus) == pytest.approx([0, row.seconds - (row.seconds_low or 0)])
    text = page(found)
    assert 'id="broadcast"' in text
    assert 'id="gather"' not in text
    assert "<gloo>" not in text


def test_a_worker_holds_one_block_and_the_server_all_blocks() -> None:
    assert [server_blocks("broadcast", "host", rank, 3) for rank in range(3)] == [(0, 1)] * 3
    assert [server_blocks("gather", "host", rank, 3) for rank in range(3)] == [(0, 3), (1, 0), (1, 0)]
    # ncclAllGather gives all blocks to the first worker, which sends them to the server.
    assert [server_blocks("gather", "nccl", rank, 4) for rank in range(4)] == [(0, 4), (1, 3), (1, 0), (1, 0)]


@pytest.mark.parametrize(
    ("operation", "backend", "blocks", "message"),
    [
        ("broadcast", "openmpi", 3, "broadcast: 1073741824 bytes x (1 at the server + 2 at workers) = 3.00 GiB"),
        ("gather", "openmpi", 5, "gather: 1073741824 bytes x (3 at the server + 2 at workers) = 5.00 GiB"),
        ("gather", "gloo", 8, "gather: 1073741824 bytes x (6 at the server + 2 at workers) = 8.00 GiB"),
    ],
)
def test_too_little_memory_is_rejected_with_the_calculation(
    operation: str, backend: str, blocks: int, message: str
) -> None:
    arguments = (operation, "host", backends.find_backend(backend), range(3), 3, 1 << 30)
    check_memory(*arguments, blocks << 30, "here")  # type: ignore[arg-type]
    with pytest.raises(RequestError) as error:
        check_memory(*arguments, (blocks << 30) - 1, "here")  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "do not fit into here" in str(error.value)
    assert str(error.value).endswith("are free; lower --bytes or --workers")


def launch(**placement: Any) -> LaunchOptions:
    """The launch options, as parsed from the command line."""
    return LaunchOptions.of(**placement)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"workers": "0"}, "--workers 0: '0' is not a number of workers; write --workers 1,2,4"),
        ({"workers": "1", "operations": "allreduce"}, "all-reduce needs at least two workers: use --workers 2 or more"),
        ({"operations": "brodcast"}, "--operation brodcast: unknown value; did you mean broadcast?"),
        ({"backends": ("gl0o",)}, "--backend gl0o: unknown back end; did you mean gloo?"),
        ({"backends": ("horovod",)}, "horovod-openmpi does not support a parameter server; supported by gloo, "),
        ({"backends": ("nccl",)}, "nccl-openmpi does not support cpu memory: use --device cuda"),
        ({"dtype": "flaot16"}, "--dtype flaot16: unknown type; did you mean float16?"),
        ({"device": "gpu"}, "--device gpu: unknown value"),
        ({"size": "1X"}, "--bytes 1X: invalid size"),
        ({"size": "2"}, "--bytes 2: 0 elements of float32; give 1 to 2147483647 elements"),
        ({"size": "9G"}, "give 1 to 2147483647 elements, as MPI can count"),
    ],
)
def test_an_invalid_request_is_rejected_in_one_line(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        ParamServerStudy.of(ParamServerOptions(**changed), launch(), tmp_path / "bench", resolve)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "bench").exists()


def test_parameters_larger_than_the_memory_of_this_machine_are_rejected(tmp_path: Path) -> None:
    workers = memory.available_bytes() // (8 << 30) + 1
    with pytest.raises(
        RequestError, match="the parameters do not fit into this machine's memory: broadcast: 8589934588 "
    ):
        ParamServerStudy.of(
            ParamServerOptions(workers=str(workers), size=str((8 << 30) - 4), backends=("openmpi",)),
            launch(),
            tmp_path / "bench",
            resolve,
        )


def test_duplicate_and_unknown_placements_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--placement host,host: name each once"):
        ParamServerStudy.of(ParamServerOptions(), launch(placement="host,host"), tmp_path / "bench", resolve)
    with pytest.raises(RequestError, match="--placement hots: unknown placement"):
        ParamServerStudy.of(ParamServerOptions(), launch(placement="hots"), tmp_path / "bench", resolve)


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU here")
@pytest.mark.parametrize("backend", ["openmpi", "nccl"])
def test_gpu_back_ends_are_rejected_without_a_gpu(tmp_path: Path, backend: str) -> None:
    with pytest.raises(RequestError, match=r"no NVIDIA GPU here: use --device cpu|nvidia-smi lists none here"):
        ParamServerStudy.of(
            ParamServerOptions(device="cuda", backends=(backend,)), launch(), tmp_path / "bench", resolve
        )


def test_a_settings_file_is_compared_by_its_contents(tmp_path: Path) -> None:
    def study(settings: str) -> ParamServerStudy:
        options = ParamServerOptions(size="1K", backends=("openmpi",))
        return ParamServerStudy.of(options, launch(settings=tmp_path / settings), tmp_path / "bench", resolve)

    def resume(asked: ParamServerStudy) -> object:
        return load_previous(asked.file, asked.document, asked.must_match)

    for name in ("settings.toml", "copy.toml"):
        (tmp_path / name).write_text(
            'schema = "hvscale/settings/1"\nmpi = "openmpi"\nset = { eager_threshold = "4K" }\n'
        )
    first = study("settings.toml")
    first.path.mkdir()
    first.write("interrupted")
    assert resume(study("copy.toml")) is not None
    changed = (tmp_path / "copy.toml").read_text().replace("4K", "8K")
    (tmp_path / "settings.toml").write_text(changed)
    with pytest.raises(
        RequestError, match=r"bench holds another study: the contents of its settings differ; give .*--run$"
    ):
        resume(study("settings.toml"))
    first.document.files = {}  # as older versions wrote it
    first.write("interrupted")
    assert resume(study("settings.toml")) is not None
    with pytest.raises(RequestError, match="bench holds another study: its launch differs"):
        resume(study("copy.toml"))


def test_ranks_are_the_workers_and_the_server_if_there_is_one(tmp_path: Path) -> None:
    study = ParamServerStudy.of(
        ParamServerOptions(size="1K", backends=("openmpi",)), launch(), tmp_path / "bench", resolve
    )
    assert [
        (str(variant), start.options.np, start.request.first_worker) for variant, start in study.variants.items()
    ] == [
        ("broadcast, openmpi, host, workers 1", 2, 1),
        ("gather, openmpi, host, workers 1", 2, 1),
        ("broadcast, openmpi, host, workers 2", 3, 1),
        ("gather, openmpi, host, workers 2", 3, 1),
        ("allreduce, openmpi, host, workers 2", 2, 0),
    ]
    assert study.document.warnings == ["all-reduce needs at least two workers: it is not measured with one"]
