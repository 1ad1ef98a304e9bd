"""The parts of a search that need no job: sampler, scores, steps and losses."""

import json
import os
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.tune import scores
from hvscale.comm_tuning.tune.document import KnobChoice, Trial
from hvscale.comm_tuning.tune.job_space import JobSpace, space_of
from hvscale.comm_tuning.tune.sampler import Sampler
from hvscale.comm_tuning.tune.search import MAX_FOLLOW_UPS, InProcessRestart
from hvscale.comm_tuning.tune.search_space import DEFAULT
from hvscale.comm_tuning.tune.steps import MeasuredSteps, StepSource, differing_loss
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate
from hvscale.studies.throughput import Metric

JOB = Target("openmpi", "5.0.11", "ob1", ["python", "train.py"], {})
CHOICES = [
    KnobChoice(knob="fusion_threshold", values=["1M", "8M", "64M", "128M"], reason=""),
    KnobChoice(knob="cycle_time", values=["0.5", "1", "5"], reason=""),
    KnobChoice(knob="allreduce_algorithm", values=[DEFAULT, "ring", "segmented_ring"], reason=""),
    KnobChoice(knob="segment_size", values=["0", "128K", "1M"], reason=""),
]
POINTS = 4 * 3 * (2 + 3)  # only one algorithm has a segment size


def space() -> JobSpace:
    return space_of(CHOICES, JOB)


def trial(settings: dict[str, str], throughput: float | None, state: str = "measured") -> Trial:
    found = Estimate(mean=throughput, low=None, high=None) if throughput is not None else None
    return Trial.model_validate(
        {
            "number": 0,
            "settings": settings,
            "state": state,
            "run": "",
            "start": 1,
            "steps": 1,
            "seconds": 1.0,
            "throughput": found,
        }
    )


def test_every_point_is_suggested_once(tmp_path: Path) -> None:
    assert len(list(space().points())) == POINTS
    small = space_of(CHOICES[1:], JOB)  # each point takes about a hundred transactions
    sampler = Sampler(tmp_path / "study.db", small, {scores.settings_key({}): 1.0})
    suggested = []
    while (suggestion := sampler.ask()) is not None:
        suggested.append(scores.settings_key(suggestion.settings))
        sampler.tell(suggestion, random.Random(len(suggested)).random())  # noqa: S311
    assert len(set(suggested)) == len(suggested) == len(list(small.points())) - 1 == POINTS / 4 - 1


def test_the_best_point_is_found_before_all_are_tried(tmp_path: Path) -> None:
    def speed(found: dict[str, str]) -> float:
        with_segments = {"0": 0.9, "128K": 0.8, "1M": 1.6}[found.get("segment_size", "0")]
        algorithm = {"segmented_ring": with_segments, "ring": 1.1}.get(found.get("allreduce_algorithm", ""), 1.0)
        return algorithm * {"0.5": 1.1, "1": 1.0, "5": 0.7}[found.get("cycle_time", "1")]

    sampler = Sampler(tmp_path / "study.db", space(), {scores.settings_key({}): 1.0})
    best = 1.0
    for _ in range(POINTS // 2):
        suggestion = sampler.ask()
        assert suggestion is not None
        value = speed(suggestion.settings)
        sampler.tell(suggestion, value)
        best = max(best, value)
    assert best > 0.9 * 1.6 * 1.1


def test_a_suggestion_without_a_result_is_dropped(tmp_path: Path) -> None:
    first = Sampler(tmp_path / "study.db", space(), {})
    suggestion = first.ask()
    assert suggestion is not None
    first.tell(suggestion, 1.5)
    assert first.ask() is not None  # the process is killed here
    resumed = Sampler(tmp_path / "study.db", space(), {scores.settings_key(suggestion.settings): 1.5})
    finished = [one for one in resumed.study.trials if one.value is not None]
    assert [one.value for one in finished] == [1.5]
    following = resumed.ask()
    assert following is not None
    assert following.settings != suggestion.settings


def test_a_folder_may_have_characters_that_mean_something_in_a_url(tmp_path: Path) -> None:
    folder = tmp_path / "a?b=c" / "100%25 #1"
    folder.mkdir(parents=True)
    assert Sampler(folder / "study.db", space(), {}).ask() is not None
    assert [path.name for path in tmp_path.iterdir()] == ["a?b=c"]


def test_a_follow_up_changes_only_free_knobs(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "study.db", space(), {})
    sampler.try_first({"allreduce_algorithm": "ring", "cycle_time": "5"})
    held = {"allreduce_algorithm": "segmented_ring", "segment_size": "1M"}
    found = []
    while (suggestion := sampler.ask(held, frozenset({"fusion_threshold"}))) is not None:
        found.append(suggestion.settings)
        sampler.tell(suggestion, 1.0)
    assert sorted(one.get("fusion_threshold", DEFAULT) for one in found) == ["1M", "64M", "8M", DEFAULT]
    assert all({**one, "fusion_threshold": "1M"} == {**held, "fusion_threshold": "1M"} for one in found)
    promising = sampler.ask()
    assert promising is not None
    assert promising.settings == {"allreduce_algorithm": "ring", "cycle_time": "5"}


def test_trials_are_compared_with_the_last_defaults_before_them() -> None:
    ring, tree = {"allreduce_algorithm": "ring"}, {"allreduce_algorithm": "tree"}
    trials = [
        trial({}, 100),
        trial(ring, 150),
        trial(tree, None, "crashed"),
        trial({}, 50),
        trial(ring, 60),
        trial({"cycle_time": "5"}, 20, "stopped early"),
    ]
    assert scores.ratios(trials) == [1, 1.5, 0, 1, 1.2, 0.4]
    found = scores.ratios_by_settings(trials)
    assert found == {scores.settings_key({}): [1, 1], scores.settings_key(ring): [1.5, 1.2]}
    assert scores.best_ratio(trials) == pytest.approx((1.5 * 1.2) ** 0.5)
    assert scores.finalists(trials) == [scores.settings_key(ring)]
    assert scores.finalists([*trials, trial(ring, None, "hung")]) == []
    assert scores.known_ratios(trials)[scores.settings_key(tree)] == 0


def test_a_failed_trial_has_no_score_whatever_it_measured_before() -> None:
    crashed, early = {"allreduce_algorithm": "ring"}, {"allreduce_algorithm": "tree"}
    trials = [trial({}, 10), trial(crashed, 30, "crashed"), trial(early, 5, "stopped early")]
    assert scores.ratios(trials) == [1, 0, 0.5]
    assert scores.ratios([trial(crashed, 30)]) == [0]  # without a trial of the defaults
    # A trial that was stopped early is no failure: the one to the end counts.
    assert scores.ratios_by_settings([*trials, trial(early, 15)])[scores.settings_key(early)] == [1.5]


def test_finalists_are_better_than_the_defaults_and_close_to_the_best() -> None:
    ring, tree = {"allreduce_algorithm": "ring"}, {"allreduce_algorithm": "tree"}
    assert scores.finalists([]) == []
    assert scores.finalists([trial({}, 10), trial(ring, 9)]) == []
    assert scores.finalists([trial({}, 10), trial(ring, 10)]) == []
    assert scores.finalists([trial({}, 10), trial(ring, 10.4)]) == [scores.settings_key(ring)]  # not the defaults
    both = [scores.settings_key(ring), scores.settings_key(tree)]
    assert scores.finalists([trial({}, 10), trial(ring, 20), trial(tree, 19)]) == both
    assert scores.finalists([trial({}, 10), trial(ring, 20), trial(tree, 18.9)]) == both[:1]


def test_the_best_throughput_is_on_the_machine_of_the_last_defaults() -> None:
    ring = {"allreduce_algorithm": "ring"}
    assert scores.best_throughput([trial(ring, 30)]) is None
    assert scores.best_throughput([trial({}, None, "crashed")]) is None
    trials = [trial({}, 9), trial({}, 10), trial(ring, 15), trial({}, 8), trial(ring, 12)]
    assert scores.best_throughput(trials) == pytest.approx(8 * 1.5)
    assert scores.best_ratio([]) == 1


def test_the_two_horovod_knobs_are_never_both_set_before_a_restart() -> None:
    by_turn = [InProcessRestart(JOB, {}, turn).free(space()) for turn in (1, 2)]
    assert sorted(by_turn, key=sorted) == [{"cycle_time"}, {"fusion_threshold"}]
    assert InProcessRestart(JOB, {"HOROVOD_CYCLE_TIME": "5", "PATH": ""}, 1).free(space()) == {"cycle_time"}
    own = InProcessRestart(replace(JOB, environment={"HOROVOD_CYCLE_TIME": "5"}), {}, 1)
    assert own.free(space()) == {"cycle_time"}
    assert own.variables(space(), {"cycle_time": "2"}, {"HOROVOD_CYCLE_TIME": "2"}) == {"HOROVOD_CYCLE_TIME": "2"}
    assert own.variables(space(), {}, {}) == {"HOROVOD_CYCLE_TIME": "5"}
    both = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_FUSION_THRESHOLD": "1048576"}
    assert InProcessRestart(JOB, both, 1).free(space()) == frozenset()
    start = InProcessRestart(JOB, {}, 2)
    requested = {"HOROVOD_FUSION_THRESHOLD": "8388608", "OMPI_MCA_pml": "ob1"}
    assert start.variables(space(), {"fusion_threshold": "8M"}, requested) == {"HOROVOD_FUSION_THRESHOLD": "8388608"}
    # A value stays in Horovod after its variable is removed, so the default is set instead.
    assert start.variables(space(), {}, {}) == {"HOROVOD_FUSION_THRESHOLD": "134217728"}
    assert start.free(space()) == {"fusion_threshold"}
    for _ in range(MAX_FOLLOW_UPS - 2):
        start.variables(space(), {}, {})
    assert start.free(space()) == frozenset()


def test_a_damaged_study_file_gives_a_one_line_error(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    sampler = Sampler(file, space(), {})
    suggestion = sampler.ask()
    assert suggestion is not None
    sampler.tell(suggestion, 1.0)
    whole = file.read_bytes()
    table = sqlite3.connect(tmp_path / "other.db")
    table.execute("create table studies (x int)")
    table.commit()
    table.close()
    for damaged in (
        b"garbage" * 1000,
        whole[:5000],
        whole[:9000] + b"\xff" * 20000,
        (tmp_path / "other.db").read_bytes(),
    ):
        file.write_bytes(damaged)
        with pytest.raises(RequestError, match=r"study\.db cannot be used \(.*\): remove it") as raised:
            Sampler(file, space(), {})
        assert "\n" not in str(raised.value)
    file.unlink()
    file.mkdir()
    with pytest.raises(RequestError, match="not a regular file"):
        Sampler(file, space(), {})
    file.rmdir()
    os.mkfifo(file)
    with pytest.raises(RequestError, match="not a regular file"):
        Sampler(file, space(), {})


@pytest.mark.parametrize("last", ["CREATE TABLE studies", "CREATE TABLE trials", "INSERT INTO studies"])
def test_an_interrupted_first_start_leaves_a_usable_study(tmp_path: Path, last: str) -> None:
    def interrupt(*arguments: object) -> None:
        if last in str(arguments[2]):  # the SQL statement
            raise KeyboardInterrupt

    file = tmp_path / "study.db"
    sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            Sampler(file, space(), {})
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "after_cursor_execute", interrupt)
    for _ in range(2):
        suggestion = Sampler(file, space(), {}).ask()
        assert suggestion is not None
        assert suggestion.number is not None


def write_steps(folder: Path, steps: list[dict[str, float | None]]) -> RunFolder:
    folder.mkdir(exist_ok=True)
    (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return RunFolder(folder)


def test_losses_show_wrong_sums(tmp_path: Path) -> None:
    right = write_steps(tmp_path / "a", [{"loss": 3.0}, {"loss": 2.5}, {"loss": 2.4}])
    close = write_steps(tmp_path / "b", [{"loss": 3.01}, {"loss": 2.49}])
    wrong = write_steps(tmp_path / "c", [{"loss": 3.0}, {"loss": 2.9}])
    lost = write_steps(tmp_path / "d", [{"loss": 3.0}, {"loss": None}])
    silent = write_steps(tmp_path / "e", [])
    assert differing_loss(close, right) is None
    assert differing_loss(silent, right) is None
    assert differing_loss(wrong, right) == "the loss of step 2 is 2.9, but 2.5 with the defaults"
    assert differing_loss(lost, right) == "the loss of step 2 is None, but 2.5 with the defaults"


@given(
    seconds=st.lists(st.floats(1e-3, 10), min_size=1, max_size=200),
    work=st.floats(1, 1000),
)
def test_throughput_is_all_work_over_all_seconds(seconds: list[float], work: float) -> None:
    steps = MeasuredSteps(np.full(len(seconds), work), np.array(seconds), "images/s")
    found = steps.throughput()
    assert found is not None
    assert found.mean == pytest.approx(work * len(seconds) / sum(seconds))
    if len(seconds) > 1:
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.mean * (1 + 1e-9)
        assert found.high >= found.mean * (1 - 1e-9)


@pytest.mark.parametrize("without", [[0], [3, 4], [9], [*range(2, 10)]])
def test_the_seconds_of_steps_without_images_count(without: list[int]) -> None:
    work = np.full(10, 8.0)
    work[without] = 0
    found = MeasuredSteps(work, np.full(10, 0.5), "images/s").throughput()
    assert found is not None
    assert found.mean == pytest.approx(8 * (10 - len(without)) / 5)


def test_steps_that_are_all_without_images_have_no_throughput() -> None:
    assert MeasuredSteps(np.zeros(10), np.full(10, 0.5), "images/s").throughput() is None


def test_steps_are_read_from_the_best_source_of_a_run(tmp_path: Path) -> None:
    run = write_steps(tmp_path, [{"images": 8.0, "seconds": 0.5}] * 6)
    source = StepSource(2, None)
    steps = source.steps(run)
    assert steps is not None
    assert (steps.unit, len(steps), steps.throughput()) == ("images/s", 6, Estimate(mean=16, low=16, high=16))
    source.lock(run)
    assert source.kind == "steps"
    (tmp_path / "logs").mkdir()
    for rank in (0, 1):
        (tmp_path / "logs" / f"rank-0000{rank}.log").write_text(f"speed {10 + rank}\nspeed {20 + rank}\n")
    for pattern, values in (("speed (?P<per_rank>[0-9]+)", [21, 41]), ("speed ([0-9]+)", [10, 20])):
        steps = StepSource(2, Metric.parse(pattern)).steps(run)
        assert steps is not None
        assert steps.work.tolist() == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("speed 10\nspeed 20\nspeed 0.", [10, 20]),
        ("speed 10\nspeed 20\nspeed 3\rspeed 4", [10, 20]),
        ("speed 1\rspeed 10\r\nspeed 2\rspeed 20\n", [10, 20]),
        ("speed 1\rspeed 2\rspeed 10", [10]),
    ],
)
def test_a_number_that_may_be_cut_or_was_overwritten_is_no_step(tmp_path: Path, text: str, values: list[float]) -> None:
    """`--metric` reads logs that ranks are still writing; a progress bar is a single match."""
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    run.log(0).write_bytes(text.encode())
    steps = StepSource(1, Metric.parse("speed ([0-9.]+)")).steps(run)
    assert steps is not None
    assert steps.work.tolist() == values
