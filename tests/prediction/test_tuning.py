"""The search in the model, and what is decided from replays."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.plain_rich import PlainConsole
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate
from hvscale.launch.options import LaunchOptions
from hvscale.prediction.model import measured_costs as measured_costs_module
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.job import PredictedJob
from hvscale.prediction.model.measured_costs import Formula
from hvscale.prediction.model.samples import Samples
from hvscale.prediction.tuning.document import RECORDED, PredictedCandidate, PredictedTune, proof_table
from hvscale.prediction.tuning.plan import PredictedTuneRequest, plan_proof, unused, warnings
from hvscale.prediction.tuning.search import (
    NEAR_BEST,
    Model,
    SamplesByKnobs,
    Settings,
    distinct,
    grid,
    measured_costs,
    predicted_gain,
    propose,
    search,
    shared_cores,
    size_text,
)
from hvscale.studies.comparison.study import RepeatedRun
from tests.prediction.model.jobs import make_job
from tests.prediction.model.test_measured_costs import samples
from tests.prediction.model.test_slowed_computing_runs import make_recording

KIB, MIB = 1 << 10, 1 << 20
RING = (("allreduce_algorithm", "ring"),)
RECORDED_SETTINGS = Settings(HorovodSettings())


def costs(**start_seconds: float) -> SamplesByKnobs:
    """Samples of runs: seconds before each message, by algorithm ("own": the library's)."""
    found: dict[tuple[tuple[str, str], ...], list[Samples]] = {}
    for name, seconds in start_seconds.items():
        law = Formula("ring", seconds, 1e-10, 1e-9, 0.0)
        runs = [samples(law, np_, rate=None, algorithm=None if name == "own" else name) for np_ in (2, 3, 4)]
        found[() if name == "own" else (("allreduce_algorithm", name),)] = runs
    return SamplesByKnobs(found, [], None, [])


def test_the_uncertainty_of_larger_messages_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message of 64 MB, and none of more than 10 MB was measured."""
    model = Model(make_job(np.full((2, 4, 1), 0.01), [64_000_000]), costs(own=1e-4), 8, None)
    expected = model.seconds(RECORDED_SETTINGS, 8, 8)
    monkeypatch.setattr(measured_costs_module, "LARGER_ERROR", 5.0)
    assert model.seconds(RECORDED_SETTINGS, 8, 8) == expected


def test_settings_that_are_zero_do_not_differ_from_themselves() -> None:
    none = Settings(HorovodSettings(cycle_seconds=0.0, fusion_bytes=0))
    assert not none.is_distinct_from(none)
    assert none.is_distinct_from(Settings(HorovodSettings(cycle_seconds=0.001, fusion_bytes=0)))


def burst_of_gradients() -> PredictedJob:
    """All tensors are ready at once, so the threshold alone decides how many messages there are."""
    return make_job(np.full((2, 3, 40), 0.02), [200 * KIB] * 40)


def found(job: PredictedJob, of: SamplesByKnobs, np_: int = 8) -> list[tuple[Settings, float]]:
    model = Model(job, of, np_, None)
    return search(model, grid(job, RECORDED_SETTINGS, of, {}))[1]


def test_costly_messages_want_a_threshold_that_holds_all_gradients() -> None:
    best, _ = found(burst_of_gradients(), costs(own=2e-3))[0]
    assert best.horovod.fusion_bytes >= 40 * 200 * KIB


def test_the_faster_of_the_measured_algorithms_is_found_and_no_other() -> None:
    points = found(burst_of_gradients(), costs(own=2e-3, ring=1e-4))
    assert points[0][0].library == RING
    assert {point.library for point, _ in points} == {(), RING}


def test_the_search_finds_the_best_of_all_points() -> None:
    job, of = burst_of_gradients(), costs(own=5e-4)
    model = Model(job, of, 64, None)
    points = grid(job, RECORDED_SETTINGS, of, {})
    _, refined = search(model, points)
    assert refined[0][1] <= min(map(model.seconds, points)) * 1.001


def test_thresholds_above_the_gradients_are_searched_once() -> None:
    job = burst_of_gradients()
    sizes = {point.horovod.fusion_bytes for point in grid(job, RECORDED_SETTINGS, costs(own=1e-4), {})}
    assert [size for size in sizes if size >= 40 * 200 * KIB] == [128 * MIB]


def test_a_fixed_knob_keeps_its_value() -> None:
    of = costs(own=1e-4, ring=1e-4)
    fixed = {"cycle_time": "1", "allreduce_algorithm": "ring"}
    points = grid(burst_of_gradients(), Settings(HorovodSettings(), RING), of, fixed)
    assert {(point.horovod.cycle_seconds, point.library) for point in points} == {(1e-3, RING)}


def test_both_sides_of_a_gain_simulate_the_same_jobs() -> None:
    model = Model(burst_of_gradients(), costs(own=1e-3), 8, None)
    same = predicted_gain(model.simulate(RECORDED_SETTINGS), model.simulate(RECORDED_SETTINGS))
    assert (same.mean, same.low, same.high) == (1, 1, 1)


settings_of_any_kind = st.builds(
    lambda size, cycle, library: Settings(HorovodSettings(cycle / 1000, size * KIB), library),
    st.sampled_from([256, 512, 1024, 4096, 131072]),
    st.sampled_from([1, 2, 5, 20]),
    st.sampled_from([(), RING]),
)


@given(st.lists(st.tuples(settings_of_any_kind, st.floats(1, 1.3)), min_size=1, unique_by=lambda pair: pair[0]))
@settings(max_examples=60, deadline=None)
def test_candidates_are_few_distinct_near_the_best_and_new(points: list[tuple[Settings, float]]) -> None:
    points = sorted(points, key=lambda pair: pair[1])
    seconds = dict(points)
    model = Model(make_job(np.full((1, 1, 1), 0.01), [8]), costs(own=1e-4, ring=1e-4), 2, None)
    model.seconds = lambda point, *_: seconds[point]  # type: ignore[method-assign]
    chosen = propose(points, RECORDED_SETTINGS, model, 3, model_error=0.1)
    assert len(chosen) <= 3
    assert RECORDED_SETTINGS not in chosen
    assert all(one.is_distinct_from(other) for one in chosen for other in chosen if one is not other)
    best = points[0][1]
    near = [point for point, predicted in points if predicted <= (1 + NEAR_BEST) * best and point != RECORDED_SETTINGS]
    assert chosen[:1] == near[:1] or not near
    assert all(seconds[point] <= 1.1 * best for point in chosen)


def test_distinct_settings_differ_by_a_factor_of_four() -> None:
    points = [Settings(HorovodSettings(1e-3, size * KIB)) for size in (256, 512, 1024, 2048, 4096)]
    assert [point.horovod.fusion_bytes // KIB for point in distinct(points, 9)] == [256, 1024, 4096]


@pytest.mark.parametrize(("size", "text"), [(128 * MIB, "128M"), (256 * KIB, "256K"), (1000, "1000"), (0, "0")])
def test_sizes_are_written_as_set_takes_them(size: int, text: str) -> None:
    assert size_text(size) == text


def document(predict_np: int, replayed: dict[str, list[float]], gains: dict[str, float]) -> PredictedTune:
    """A study with these replayed seconds, and predicted gains of +- 1 % for `predict_np`."""
    step = Estimate(mean=1, low=0.9, high=1.1)
    candidates = {
        name: PredictedCandidate(
            settings={"fusion_threshold": f"{number + 1}M"},
            step=step,
            step_in_proof=step,
            gain=Estimate(mean=gains[name], low=gains[name] - 0.01, high=gains[name] + 0.01) if name in gains else None,
        )
        for number, name in enumerate(replayed)
    }
    made = PredictedTune(
        folder="study",
        command=["hvscale", "replay", "recorded"],
        np=4,
        launch={name: LaunchOptions(np=4) for name in replayed},
        metric=None,
        repeats=3,
        predict_np=predict_np,
        recording="recorded",
        profiled_runs=[],
        measured_np=[2, 4],
        points=[],
        candidates=candidates,
        runs=[
            RepeatedRun(name=name, repeat=repeat, folder=f"{name}-{repeat}", seconds=one)
            for name, values in replayed.items()
            for repeat, one in enumerate(values, 1)
        ],
    )
    made.tabulate()
    made.decide(rounds=made.repeats)
    return made


def test_a_proven_candidate_is_chosen_and_the_predicted_part_named() -> None:
    made = document(512, {RECORDED: [1.0, 1.01, 0.99], "candidate-1": [0.8, 0.81, 0.79]}, {"candidate-1": 1.3})
    assert (made.choice, made.settings) == ("candidate-1", {"fusion_threshold": "2M"})
    assert made.verdict is not None
    assert made.verdict.startswith("use fusion_threshold=2M: proven by 3 interleaved replays at np 4: +25.0 % ")
    assert "Predicted for np 512, not proven: +30.0 % " in made.verdict
    assert made.rows[1].model_error_percent == pytest.approx(25, abs=0.1)
    table = proof_table(made)
    assert [row[-1] for row in table.groups["replayed, np 4"]] == ["", "proven faster"]
    console, shown = PlainConsole(), io.StringIO()
    console.file, console.width = shown, 80
    console.print(table.table())
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown.getvalue()


def test_the_fastest_of_the_proven_candidates_is_chosen() -> None:
    replayed = {RECORDED: [1.0, 1.01], "candidate-1": [0.9, 0.91], "candidate-2": [0.8, 0.81]}
    assert document(512, replayed, {"candidate-1": 1.3, "candidate-2": 1.2}).choice == "candidate-2"


NO_DIFFERENCE = {RECORDED: [1.0, 1.1, 0.9], "candidate-1": [1.1, 0.9, 1.0]}


def test_a_gain_that_is_only_predicted_is_chosen_for_more_ranks_alone() -> None:
    beyond = document(512, NO_DIFFERENCE, {"candidate-1": 1.3})
    assert beyond.choice == "candidate-1"
    assert "show no difference" in (beyond.verdict or "")
    assert "not proven" in (beyond.verdict or "")
    assert document(4, NO_DIFFERENCE, {"candidate-1": 1.3}).choice == RECORDED
    assert document(512, NO_DIFFERENCE, {"candidate-1": 1.0}).choice == RECORDED


def test_a_candidate_that_is_slower_in_replays_is_refused() -> None:
    made = document(512, {RECORDED: [1.0, 1.01], "candidate-1": [1.2, 1.21]}, {"candidate-1": 1.3})
    assert (made.choice, made.settings) == (RECORDED, {"fusion_threshold": "1M"})
    assert (made.verdict or "").startswith("keep the recorded settings")


def test_what_some_rounds_have_proven_is_said_before_there_is_a_choice() -> None:
    made = document(512, {RECORDED: [1.0, 1.01], "candidate-1": [0.8, 0.81]}, {"candidate-1": 1.3})
    made.decide(rounds=2)
    assert (made.choice, made.settings) == (None, None)
    assert (made.verdict or "").startswith("so far, after 2 of 3 rounds: use fusion_threshold=2M: proven by 2 ")
    made.decide(rounds=1)
    assert made.verdict is None


def test_a_candidate_without_a_finished_replay_is_not_chosen() -> None:
    made = document(512, {RECORDED: [1.0, 1.01], "candidate-1": []}, {"candidate-1": 1.3})
    assert (made.choice, made.rows[1].verdict) == (RECORDED, "unknown")


def test_without_measured_runs_the_command_that_measures_is_named() -> None:
    with pytest.raises(RequestError, match="hvscale profile -np 4 -- hvscale replay RUN"):
        measured_costs([], "openmpi", None, "hvscale profile -np 4 -- hvscale replay RUN")


def test_a_run_without_usable_messages_is_warned_of() -> None:
    run = samples(Formula("ring", 1e-4, 1e-10, 1e-9, 0.0), 4)
    used, other = RunFolder(Path("used")), RunFolder(Path("other"))
    of = SamplesByKnobs({(): [run]}, [(used, run)], None, [])
    options = LaunchOptions.of(mpi="openmpi", placement="netns", link="1gbit")
    [warning] = unused([used, other], of, options)
    assert warning.startswith("other: not used, because the calls of all-reduces of openmpi on links of 1gbit were not")
    assert not unused([used, other], replace(of, unlimited=[(other, run)]), options)


@pytest.mark.parametrize(
    ("np_", "per_core", "on_this_machine", "cores"), [(32, 1, True, 32), (32, 1, False, None), (64, 2, False, 64)]
)
def test_more_ranks_share_cores_unless_they_take_more_hosts(
    np_: int, per_core: float, on_this_machine: bool, cores: int | None
) -> None:
    measured = [samples(Formula("ring", 1e-4, 1e-10, 1e-9, 0.0), np_, per_core=per_core)]
    assert shared_cores(measured, 128, on_this_machine) == cores


def test_a_proof_on_more_hosts_has_more_cores(tmp_path: Path) -> None:
    """Recorded by two ranks on the two cores of one host; eight ranks prove settings."""
    recording = make_recording(tmp_path / "job")
    steps = {}
    for name, hosts in {"here": None, "hosts": "a:2,b:2,c:2,d:2"}.items():
        options = LaunchOptions.of(mpi="openmpi", hosts=hosts, run=tmp_path / name)
        fixed = {"fusion_threshold": "64M", "cycle_time": "5"}
        request = PredictedTuneRequest(64, 8, options, pairs=2, steps=4, fixed=fixed)
        proof = plan_proof([recording], request, lambda _, options: options, lambda _: None)
        steps[name] = proof.document.candidates[RECORDED].step_in_proof.mean
    assert steps["hosts"] < steps["here"]


def test_an_invalid_fixed_value_is_named_as_it_was_given(tmp_path: Path) -> None:
    options = LaunchOptions.of(mpi="openmpi", run=tmp_path / "study")
    request = PredictedTuneRequest(64, 2, options, pairs=2, steps=4, fixed={"cycle_time": "soon"})
    with pytest.raises(RequestError, match=r"^--fix cycle_time=soon: give milliseconds"):
        plan_proof([make_recording(tmp_path / "job")], request, lambda _, options: options, lambda _: None)


@pytest.mark.parametrize(("nodes", "count"), [(4, 0), (2, 1), (None, 0)])
def test_replays_with_more_ranks_on_a_node_than_were_measured_are_warned_of(nodes: int | None, count: int) -> None:
    run = samples(Formula("ring", 1e-4, 1e-10, 1e-9, 0.0), 4)
    of = SamplesByKnobs({(): [run]}, [(RunFolder(Path("replay")), run)], None, [])
    options = LaunchOptions.of(np=4, placement="netns", nodes=nodes)
    assert len(warnings(options, of, 0.02)) == count
    assert len(warnings(options, of, 0.2)) == count + 1
