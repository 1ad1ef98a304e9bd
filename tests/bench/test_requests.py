"""Requests that `hvscale bench` rejects in one line, with advice, before anything is started."""

from pathlib import Path
from typing import Any

import pytest

from hvscale.bench.collectives import memory
from hvscale.bench.collectives.controller import CollectiveBench, CollectiveOptions
from hvscale.bench.collectives.rank_job import ResultReader
from hvscale.bench.collectives.request import DEFAULT_ITERATIONS, DEFAULT_WARMUP, results_path
from hvscale.cli.launch_options import resolve
from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.host import gpus
from hvscale.launch.options import LaunchOptions


def launch(tmp_path: Path, **changed: Any) -> LaunchOptions:
    """The launch options, as parsed from the command line."""
    return LaunchOptions.of(**{"np": 2, "run": tmp_path / "bench", **changed})


def options(**changed: Any) -> CollectiveOptions:
    return CollectiveOptions(**{"iterations": DEFAULT_ITERATIONS, "warmup": DEFAULT_WARMUP, **changed})


@pytest.mark.parametrize(
    ("changed", "launch_options", "message"),
    [
        ({}, {"np": 1}, "-np 1: a collective needs at least two ranks: use -np 2"),
        ({"root": 2}, {}, "--root 2: invalid rank; give 0 to 1"),
        ({"backends": ("gl0o",)}, {}, "--backend gl0o: unknown back end; did you mean gloo? Known: mpi, horovod, "),
        ({"dtype": "flaot16"}, {}, "--dtype flaot16: unknown type; did you mean float16?"),
        ({"device": "gpu"}, {}, "--device gpu: unknown value; did you mean cpu? Known: cpu, cuda"),
        ({"in_place": "no"}, {}, "--in-place no: unknown value"),
        ({"backends": ("gloo",), "in_place": "out"}, {}, "gloo supports allreduce only in place: use --in-place both"),
        (
            {"backends": ("horovod",), "dtype": "bfloat16"},
            {},
            "horovod-openmpi does not support bfloat16; supported by gloo, intelmpi, ",
        ),
        ({"backends": ("nccl",)}, {}, "nccl does not support cpu memory: use --device cuda"),
        (
            {"device": "cuda", "paths": ("nccl",)},
            {},
            "openmpi does not support --path nccl on cuda memory; it supports staged, aware",
        ),
        ({"paths": ("straight",)}, {}, "--path straight: unknown value"),
        ({"sizes": "mlbench", "max_bytes": "1M"}, {}, "--sizes cannot be combined with --min-bytes"),
        ({"max_bytes": "100T"}, {}, "--max-bytes 100T: invalid size"),
        ({"max_bytes": "64G"}, {}, "more than MPI can count (2147483647); lower --max-bytes"),
        ({"iterations": "many"}, {}, "--iterations many: give a number of calls"),
        ({}, {"set": ["fusion=1M"]}, "--set fusion=1M: unknown knob"),
    ],
)
def test_an_invalid_request_is_rejected_in_one_line(
    tmp_path: Path, changed: dict[str, Any], launch_options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError) as error:
        CollectiveBench.of("allreduce", options(**changed), launch(tmp_path, **launch_options), resolve)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "bench").exists()


def test_too_little_memory_is_an_error(tmp_path: Path) -> None:
    largest = 1 << 32
    ranks = memory.available_bytes() // (2 * largest) + 1
    with pytest.raises(RequestError) as error:
        CollectiveBench.of("allreduce", options(max_bytes="4G"), launch(tmp_path, np=max(2, ranks)), resolve)
    assert f"{largest} bytes in each buffer x 2 buffers x {max(2, ranks)} ranks = " in str(error.value)
    assert "GiB are free; lower --max-bytes or start fewer ranks" in str(error.value)


def test_a_missing_back_end_is_reported_with_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"mvapich2: no MVAPICH2 in PATH .*: load its module, add its bin folder to PATH"
    ):
        CollectiveBench.of("allreduce", options(backends=("mvapich2",)), launch(tmp_path), resolve)
    if not gpus():
        with pytest.raises(RequestError, match="nccl: NCCL needs NVIDIA GPUs, and nvidia-smi lists none here"):
            CollectiveBench.of("allreduce", options(backends=("nccl",), device="cuda"), launch(tmp_path), resolve)


def test_sizes_that_round_to_the_same_count_give_a_warning(tmp_path: Path) -> None:
    bench = CollectiveBench.of("allreduce", options(sizes="mlbench"), launch(tmp_path), resolve)
    kept = len(bench.launches[0].request.sizes)
    assert bench.document.warnings == [f"80 sizes round to {kept} whole numbers of float32: each is measured once"]
    assert bench.expected_rows(bench.launches[0]) == 2 * kept


def test_each_back_end_gets_its_own_flavour_and_knobs(tmp_path: Path) -> None:
    requested = launch(tmp_path, set=["allreduce_algorithm=ring"], env=["A=1"])
    bench = CollectiveBench.of("allreduce", options(backends=("openmpi",), max_bytes="1K"), requested, resolve)
    [start] = bench.launches
    assert (start.options.mpi, start.entry.knobs) == ("openmpi", {"allreduce_algorithm": "ring"})
    assert {"A=1", "OMPI_MCA_coll_tuned_allreduce_algorithm=4"} <= set(start.options.env)
    assert [size.bytes for size in start.request.sizes] == [4 << power for power in range(9)]


@pytest.mark.parametrize("seconds", ["[]", "[-1.0]", "[1e999]", "["])
def test_damaged_results_are_not_trusted(tmp_path: Path, seconds: str) -> None:
    line = (
        f'{{"kind": "measured", "bytes": 4, "count": 1, "in_place": true, "calls_per_sample": 1, "seconds": {seconds}'
    )
    results_path(tmp_path).write_text(f'{line}, "rank_seconds": [1.0]}}\n')
    with pytest.raises(UntrustedError, match=r"bench\.jsonl is damaged"):
        ResultReader(tmp_path).new_results()
