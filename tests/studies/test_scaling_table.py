"""The table of a scaling study."""

import io
import math
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hvscale.cli.console import measure_and_print
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Host, Library, RunFolder, RunRecord
from hvscale.launch.options import LaunchHooks, LaunchOptions
from hvscale.report.progress import RunProgress
from hvscale.studies.scaling.document import ScalingDocument, ScalingRun, scaling_table, tabulate
from hvscale.studies.scaling.study import ScalingStudy


def runs(by_np: dict[int, list[float | None]]) -> list[ScalingRun]:
    return [
        ScalingRun(np=np, repeat=repeat, folder="", throughput=value)
        for np, values in by_np.items()
        for repeat, value in enumerate(values, 1)
    ]


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(0.2, 2)), min_size=2, max_size=6))
def test_speed_up_is_independent_of_machine_speed_in_each_round(rounds: list[tuple[float, float]]) -> None:
    """A slowdown of both runs of a round cancels out; the efficiency is the same in all rounds."""
    table = tabulate(runs({1: [speed for speed, _ in rounds], 4: [4 * 0.8 * speed for speed, _ in rounds]}), base_np=1)
    assert table[1].scaling_efficiency == pytest.approx(0.8)
    assert table[1].scaling_efficiency_low == pytest.approx(0.8)
    assert table[1].scaling_efficiency_high == pytest.approx(0.8)


def test_a_round_without_a_baseline_counts_only_for_the_throughput() -> None:
    first, second = tabulate(runs({2: [10, None], 4: [15, 1000]}), base_np=2)
    assert (first.np, first.runs, first.speed_up, first.scaling_efficiency) == (2, 1, 1, 1)
    assert (second.runs, second.speed_up, second.speed_up_low) == (2, 1.5, None)
    assert second.scaling_efficiency == 0.75
    assert second.throughput == pytest.approx(math.sqrt(15_000))


def test_without_a_baseline_there_is_no_speed_up() -> None:
    (row,) = tabulate(runs({1: [None], 2: [20]}), base_np=1)
    assert (row.np, row.throughput, row.speed_up, row.scaling_efficiency) == (2, 20, None, None)


def test_the_table_fits_80_columns() -> None:
    folder, launch = "/runs/study", LaunchOptions()
    document = ScalingDocument(
        folder=folder, command=["a"], scaling="weak", launch=launch, metric=None, np=[1, 16], base_np=1, repeats=3
    )
    document.runs = runs({1: [30.56, 31, 30], 16: [400.2, 410, 390]})
    document.tabulate()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(scaling_table(document).table())
    table = console.export_text()
    assert "speed-up" in table
    assert "…" not in table


def finished_run(command: list[str], options: LaunchOptions, cores: int = 2, version: str = "5") -> None:
    """A run folder as after a launch of the command."""
    assert options.run is not None
    run = RunFolder.create(options.run)
    run.log(0).write_text("speed: 5\n")
    host = Host(name="node", kernel="6", cpu="Xeon", cores=cores, memory_bytes=1)
    record = RunRecord(
        state="finished",
        command=command,
        np=1,
        library=Library(flavour="openmpi", version=version),
        host=host,
        working_directory="/",
        started_at=datetime.now(UTC),
    )
    run.write(record)
    run.unlock()


def scaling_study(folder: Path, repeats: int) -> ScalingStudy:
    return ScalingStudy.of(
        [sys.executable],
        ranks="1",
        repeats=repeats,
        scaling="weak",
        metric="speed: ([0-9]+)",
        path=folder,
        options=LaunchOptions(),
    )


def test_runs_of_two_machines_in_one_study_give_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was copied to another machine is resumed there."""
    cores = iter((2, 2, 64))

    def launch(command: list[str], options: LaunchOptions, hooks: LaunchHooks) -> None:
        finished_run(command, options, next(cores))

    monkeypatch.setattr("hvscale.studies.scaling.study.launch", launch)
    warnings: list[str] = []
    for repeats in (2, 3):
        assert not warnings
        study = scaling_study(tmp_path / "study", repeats)
        study.measure(RunProgress(1, repeats), warnings.append)
    assert warnings == study.document.warnings
    assert warnings[0].startswith("runs on node (Xeon, 2 cores) are compared with runs on node (Xeon, 64 cores): ")


def test_runs_on_two_versions_of_a_library_in_one_study_give_a_warning(tmp_path: Path) -> None:
    """A study is resumed after the library was updated."""
    study = scaling_study(tmp_path / "study", 3)
    for repeat, version in enumerate(("4.1.6", "4.1.6", "5.0.11"), 1):
        options = LaunchOptions(run=study.path / f"np-1-repeat-{repeat}")
        finished_run([sys.executable], options, version=version)
    study.write("interrupted")
    warnings: list[str] = []
    study.measure(RunProgress(1, 3), warnings.append)
    assert warnings == study.document.warnings
    [warning] = warnings
    assert warning.startswith("runs on openmpi 4.1.6 are compared with runs on openmpi 5.0.11: ")


def test_a_page_that_cannot_be_written_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = tmp_path / "study", tmp_path / "study/scale.html"

    def launch(command: list[str], options: LaunchOptions, hooks: LaunchHooks) -> None:
        finished_run(command, options)
        page.mkdir()  # nothing can replace a folder

    def measure() -> None:
        measure_and_print(
            scaling_study(folder, 1),
            json=True,
            csv=None,
            write_csv=lambda document, path: None,
            show=lambda document: None,
            last=f"scale folder: {folder}",
            page="plot",
        )

    monkeypatch.setattr("hvscale.studies.scaling.study.launch", launch)
    with pytest.raises(RequestError, match="cannot write"):
        measure()
    assert capsys.readouterr().err.splitlines()[-1] == f"scale folder: {folder}"
    page.rmdir()
    measure()
    assert capsys.readouterr().err.splitlines()[-2:] == [f"scale folder: {folder}", f"plot: {page}"]
