"""Throughput of a run, from its files."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.run_folder import RunFolder
from hvscale.studies.throughput import Metric, Throughput, read_throughput


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "job")
    folder.logs.mkdir(parents=True)
    return folder


def read(run: RunFolder, ranks: int, metric: str | None = None) -> Throughput:
    return read_throughput(run, ranks, Metric.parse(metric) if metric else None, lambda text: None)


def write_steps(run: RunFolder, steps: Sequence[tuple[float | None, float]]) -> None:
    run.steps.write_text("".join(json.dumps({"images": images, "seconds": each}) + "\n" for images, each in steps))


def test_the_first_three_steps_are_excluded(run: RunFolder) -> None:
    write_steps(run, [(8, 100.0)] * 3 + [(8, 0.5), (8, 1.5)])
    assert read(run, 2) == Throughput(8.0, "steps.jsonl", "images/s")


def test_a_short_run_uses_all_its_steps(run: RunFolder) -> None:
    write_steps(run, [(8, 1.0), (8, 3.0)])
    assert read(run, 2).value == 4


def test_steps_without_images_fall_back_to_the_output(run: RunFolder) -> None:
    write_steps(run, [(None, 1.0)] * 5)
    run.log(0).write_text("Total img/sec on 2 GPU(s): 512.5 +-3.2\n")
    assert read(run, 2) == Throughput(512.5, "horovod", "images/s")


def test_speed_per_gpu_is_multiplied_by_np_and_a_total_takes_precedence(run: RunFolder) -> None:
    run.log(0).write_text("Running benchmark...\nIter #9: 1.0 img/sec per GPU\nImg/sec per GPU: 1488.1 +-2.2\n")
    assert read(run, 4).value == pytest.approx(4 * 1488.1)
    with run.log(0).open("a") as log:
        log.write("Total img/sec on 4 GPU(s): 5952.5 +-8.8\n")
    assert read(run, 4).value == 5952.5


def test_colours_do_not_hide_a_number(run: RunFolder) -> None:
    run.log(0).write_text("\x1b[32mspeed:\x1b[0m \x1b[1;38;5;4m12.5\x1b[0m\n")
    assert read(run, 1, r"speed: ([0-9.]+)").value == 12.5
    run.log(0).write_text("\x1b[1mTotal img/sec on 2 GPU(s): \x1b[32m512.5\x1b[m +-3.2\n")
    assert read(run, 2).value == 512.5


def test_a_total_of_another_number_of_ranks_is_not_trusted(run: RunFolder) -> None:
    run.log(0).write_text("Total img/sec on 1 CPU(s): 10.0 +-0.1\n")
    with pytest.raises(UntrustedError, match="np 2: the command says that it ran on 1"):
        read(run, 2)


def test_a_trainer_s_result_of_another_number_of_ranks_is_not_trusted(run: RunFolder) -> None:
    (run.path / "result.json").write_text(json.dumps({"images_per_second": 5.0, "np": 1}))
    assert read(run, 1) == Throughput(5.0, "result.json", "images/s", None)
    with pytest.raises(UntrustedError):
        read(run, 2)


def test_the_median_of_several_matches_is_used(run: RunFolder) -> None:
    run.log(0).write_text("".join(f"epoch: {speed} images/s\n" for speed in ("1", "1,000.5", "900", "1,100,", "9e3")))
    assert read(run, 1, r"epoch: (\S+) images/s").value == 1000.5


def test_overwritten_text_of_a_progress_bar_is_ignored(run: RunFolder) -> None:
    run.log(0).write_bytes(b"10 it/s\r20 it/s\r30 it/s\r\n")
    assert read(run, 1, r"([0-9]+) it/s").value == 30


def test_per_rank_throughput_is_the_mean_times_np(run: RunFolder) -> None:
    run.log(1).write_text("own 10\n")
    run.log(3).write_text("own 30\n")
    assert read(run, 4, "own (?P<per_rank>[0-9]+)").value == 80


@pytest.mark.parametrize("text", ["0", "-3", "fast", "nan", "inf", "", "1.2.3", "12,5", "0,125", "1.234,5"])
def test_an_invalid_match_is_an_error(run: RunFolder, text: str) -> None:
    run.log(0).write_text(f"speed <{text}>\n")
    with pytest.raises(RequestError, match="is not a valid throughput"):
        read(run, 1, "speed <(.*)>")


def test_an_empty_optional_group_is_an_error(run: RunFolder) -> None:
    run.log(0).write_text("speed\n")
    with pytest.raises(RequestError, match="is not a valid throughput"):
        read(run, 1, "speed( [0-9]+)?")
