"""Rounds of an interleaved study whose runs are far apart, as an interruption leaves them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hvscale.core.run_folder import Host, Library, RankEnd, RunFolder, RunRecord
from hvscale.launch.options import LaunchOptions
from hvscale.report.progress import RunProgress
from hvscale.studies.base import Period, long_pauses
from hvscale.studies.comparison.settings import SettingsComparison, settings_study
from hvscale.studies.comparison.study import ComparisonStudy

BEGAN = datetime(2026, 11, 24, 9, tzinfo=UTC)
HOUR, DAY = 3600, 86400


def periods(*spans: tuple[float, float]) -> list[Period]:
    return [(BEGAN + timedelta(seconds=start), BEGAN + timedelta(seconds=end)) for start, end in spans]


@pytest.mark.parametrize(
    ("rounds", "named"),
    [
        ([[(0, 20), (21, 40)], [(41, 60), (61, 80)]], None),
        ([[(0, 20), (21, 40)], [(41, 60), (2 * DAY, 2 * DAY + 20)]], "round 2: its runs were measured with a pause of"),
        ([[(0, 20), (50, 70)]], None),  # of less than a minute
        ([[(0, HOUR), (1.5 * HOUR, 2.5 * HOUR)]], None),  # runs of an hour are as far apart anyway
        ([[(3 * DAY, 3 * DAY + 5), (0, 5)], [(20, 25)], [(3 * DAY, 3 * DAY + 9), (30, 35)]], "rounds 1, 3: their runs"),
        ([[], [(0, 5)]], None),
    ],
)
def test_a_pause_longer_than_the_runs_of_a_round_is_named(
    rounds: Sequence[Sequence[tuple[float, float]]], named: str | None
) -> None:
    text = long_pauses({number: periods(*spans) for number, spans in enumerate(rounds, 1)})
    assert (text is None) == (named is None)
    assert text is None or (text.startswith(named or "") and "\n" not in text)


def study(folder: Path, repeats: int) -> ComparisonStudy[SettingsComparison]:
    jobs = {name: LaunchOptions(np=1, run=folder) for name in ("a", "b")}
    return settings_study(
        jobs, ["true"], repeats=repeats, metric="speed ([0-9]+)", bins="study", folder_name=lambda name: name
    )


def test_a_round_of_two_days_gives_a_warning_and_keeps_its_results(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    study(folder, 2).write("interrupted")
    [*first, later] = periods((0, 20), (21, 40), (41, 60), (2 * DAY, 2 * DAY + 20))
    for name, (start, end) in zip(
        ("a-repeat-1", "b-repeat-1", "a-repeat-2", "b-repeat-2"), [*first, later], strict=True
    ):
        run = RunFolder.create(folder / name)
        host = Host(name="h", kernel="k", cpu="c", cores=1, memory_bytes=1)
        library = Library(flavour="openmpi", version="5")
        record = RunRecord(command=["true"], np=1, library=library, host=host, working_directory="/", started_at=start)
        ranks = [RankEnd(rank=0, host="h", pid=1, started_at=start.timestamp(), ended_at=end.timestamp())]
        run.write(record.model_copy(update={"state": "finished", "ended_at": end, "ranks": ranks}))
        run.log(0).write_text("speed 5\n")
        run.unlock()
    resumed = study(folder, 2)
    warnings: list[str] = []
    resumed.measure(RunProgress(2, 2), warnings.append)
    [warning] = [text for text in warnings if "pause" in text]
    assert warning.startswith("round 2: its runs were measured with a pause of up to 1 d, so ")
    assert warning in resumed.document.warnings
    assert [len(row.throughputs) for row in resumed.document.rows] == [2, 2]
