"""The search of --autotune, against jobs whose step times are known."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.comm_tuning.autotune.rank_side.candidates import JobShape, Moves, Space
from hvscale.comm_tuning.autotune.rank_side.request import Remembered, Settings
from hvscale.comm_tuning.autotune.rank_side.search import (
    FIRST_PAIRS,
    MAX_LOSS,
    PAIR_STEPS,
    PAIRS,
    PROBE_SHARE,
    PROFILE_STEPS,
    T_99,
    Block,
    BlockTimes,
    LiveSearch,
    Outcome,
    applicable,
    interval,
)
from hvscale.comm_tuning.autotune.rank_side.step_model import MessageCost, communication_end, fitted_cost
from hvscale.core.statistics import estimate
from tests.comm_tuning.searches import among, drive

BETTER, WORSE, BAD = {"cycle_time": "5"}, {"cycle_time": "25"}, {"fusion_threshold": "1M"}
SECONDS = {
    "cycle_time=5": 0.8,
    "cycle_time=25": 1.2,
    "cycle_time=10": 1.0,
    "fusion_threshold=1M": 1.9,
}  # relative to the defaults
SWITCH = 0.02
STEPS = 150


def factor(settings: Settings) -> float:
    found = 1.0
    for knob, value in settings.items():
        found *= SECONDS[f"{knob}={value}"]
    return found


def run(
    search: LiveSearch, noise: float = 0.02, seed: int = 0, step: float = 1.0
) -> tuple[Outcome, list[Block], float]:
    """Run the search on a simulated job; returns its outcome, its blocks, and what it cost."""
    source = random.Random(seed)  # noqa: S311 - no secret
    current, cost = dict[str, str](), 0.0

    def times_of(block: Block) -> BlockTimes:
        nonlocal current, cost
        switch = SWITCH if block.settings != current else 0.0
        current = block.settings
        times = [step * factor(current) * source.lognormvariate(0, noise) for _ in range(block.steps)]
        cost += switch + block.steps * step * (factor(current) - 1)
        return BlockTimes(times, switch, 0.5 * sum(times))

    return *drive(search, times_of), cost


def test_a_faster_candidate_is_found_and_proven() -> None:
    outcome, blocks, cost = run(among(STEPS, [WORSE, BETTER, BAD]))
    assert (outcome.state, outcome.settings) == ("tuned", BETTER)
    assert outcome.gain is not None
    assert outcome.gain[1] > 1
    assert outcome.gain[0] == pytest.approx(1 / 0.8, rel=0.05)
    assert FIRST_PAIRS <= len(outcome.pairs) <= PAIRS
    assert cost < 0  # the phase itself gained
    assert sum(block.steps for block in blocks) <= STEPS


def test_a_slower_candidate_ends_within_two_steps() -> None:
    search = among(10 * STEPS, [WORSE, BAD])
    outcome, blocks, _ = run(search)
    assert outcome.state == "defaults"
    for candidate in (WORSE, BAD):
        assert sum(block.steps for block in blocks if block.settings == candidate) <= 2
    assert [(trial.settings, trial.kept) for trial in search.trials] == [(WORSE, False), (BAD, False)]


def test_at_most_one_percent_is_lost_where_nothing_can_be_won() -> None:
    """In the mean over jobs; a single candidate may cost up to one of its steps more."""
    costs = [run(among(STEPS, 4 * [WORSE]), seed=seed)[2] for seed in range(20)]
    assert sum(costs) / len(costs) <= MAX_LOSS * STEPS
    assert max(costs) <= MAX_LOSS * STEPS + 2 * (factor(WORSE) - 1) + 2 * SWITCH


def test_equal_candidates_are_not_taken_for_gains() -> None:
    """Noise alone is proven to be a gain in less than one job of twenty."""
    found = [run(among(STEPS, 3 * [{"cycle_time": "10"}]), noise=0.05, seed=seed)[0].state for seed in range(60)]
    assert found.count("tuned") <= 3


def test_steps_that_are_too_short_are_not_tuned() -> None:
    outcome, blocks, cost = run(among(STEPS, [BETTER]), step=0.005)
    assert outcome.state == "defaults"
    assert "too short" in outcome.reason
    assert "--autotune-steps" in outcome.reason
    assert [block.steps for block in blocks] == [PROFILE_STEPS]
    assert cost == 0


def test_a_job_that_does_not_wait_is_not_tuned() -> None:
    outcome, blocks = drive(among(STEPS, [BETTER]), lambda block: BlockTimes(block.steps * [1.0], waited=0.06))
    assert outcome.reason == "ranks wait for communication in only 0.5% of a step"
    assert len(blocks) == 1


def test_remembered_settings_begin_and_are_checked() -> None:
    outcome, blocks, _ = run(among(STEPS, [WORSE], Remembered(BETTER, proven=True)))
    assert blocks[0].settings == BETTER
    assert (outcome.state, outcome.settings, outcome.remembered) == ("tuned", BETTER, True)
    assert sum(block.steps for block in blocks) <= 25
    assert blocks[-1].settings == BETTER  # already in effect when they are proven


@pytest.mark.parametrize(("asked", "most"), [(20, 24), (32, 32), (STEPS, 48)])
def test_remembered_settings_without_a_clear_gain_take_the_steps_asked_for(asked: int, most: int) -> None:
    """But three pairs of blocks at least."""
    for seed in range(20):
        _, blocks, _ = run(among(asked, [], Remembered({"cycle_time": "10"}, proven=True)), noise=0.1, seed=seed)
        assert sum(block.steps for block in blocks) <= most


def test_remembered_settings_that_no_longer_win_are_dropped() -> None:
    search = among(STEPS, [], Remembered(WORSE, proven=True))
    outcome, _, _ = run(search)
    assert (outcome.state, outcome.settings, search.drops_remembered) == ("defaults", {}, True)
    assert outcome.reason.startswith("the remembered settings no longer win")


def test_remembered_settings_without_a_proof_need_a_whole_one() -> None:
    outcome, blocks, _ = run(among(STEPS, [WORSE], Remembered(BETTER, proven=False)))
    assert blocks[0].settings == BETTER
    assert (outcome.state, outcome.settings, outcome.remembered) == ("tuned", BETTER, True)
    assert FIRST_PAIRS <= len(outcome.pairs) <= PAIRS
    equal = Remembered({"cycle_time": "10"}, proven=False)
    found = [run(among(STEPS, [], equal), noise=0.05, seed=seed)[0] for seed in range(60)]
    assert [one.state for one in found].count("tuned") <= 3
    reasons = {one.reason for one in found if one.state == "defaults"}
    assert reasons == {"the remembered settings have no proven gain, and there is nothing to try"}


def test_the_best_settings_so_far_are_known_before_their_proof() -> None:
    search = among(STEPS, [WORSE, BETTER, BAD])
    known = []

    def times_of(block: Block) -> BlockTimes:
        known.append((search.used, search.best))
        return BlockTimes(block.steps * [factor(block.settings)], waited=block.steps * 0.5)

    drive(search, times_of)
    assert known[0] == (0, {})
    assert min(used for used, best in known if best == BETTER) < 3 * PROFILE_STEPS
    assert search.best == BETTER


def test_other_settings_are_searched_once_the_remembered_ones_are_dropped() -> None:
    outcome, _, _ = run(among(4 * STEPS, [BETTER], Remembered(WORSE, proven=True)))
    assert (outcome.state, outcome.settings, outcome.remembered) == ("tuned", BETTER, False)


@given(
    steps=st.integers(20, 400),
    remembered=st.sampled_from([None, Remembered(BETTER, proven=True), Remembered(BETTER, proven=False)]),
    seconds=st.lists(st.floats(1e-4, 10), min_size=7, max_size=50),
    switch=st.floats(0, 1),
)
def test_any_step_times_end_the_search(
    steps: int, remembered: Remembered | None, seconds: list[float], switch: float
) -> None:
    used = 0

    def times_of(block: Block) -> BlockTimes:
        nonlocal used
        assert block.steps > 0
        times = [seconds[(used + step) % len(seconds)] for step in range(block.steps)]
        used += block.steps
        return BlockTimes(times, switch, sum(times))

    search = among(steps, 3 * [BETTER, WORSE, BAD], remembered)
    outcome, _ = drive(search, times_of)
    assert used <= max(steps, PROFILE_STEPS) + 2 * 2 * PAIRS * PAIR_STEPS
    assert bool(outcome.settings) == (outcome.state == "tuned")


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=12))
def test_the_interval_is_that_of_core_statistics(ratios: list[float]) -> None:
    expected = estimate(ratios)
    assert interval(ratios) == pytest.approx((expected.mean, expected.low, expected.high), rel=2e-3)
    assert interval(ratios, T_99)[1] <= interval(ratios)[1]


SHAPE = JobShape(gradient_bytes=64 << 20, step_seconds=0.1)


@pytest.mark.parametrize(
    ("accepts", "shape", "expected"),
    [
        (lambda knob, value: knob == "cycle_time", SHAPE, ["5", "2.5", "10", "1"]),
        (lambda knob, value: knob == "fusion_threshold", SHAPE, ["16M", "8M", "32M"]),
        (lambda knob, value: knob == "allreduce_algorithm", SHAPE, ["ring"]),
        (lambda knob, value: knob == "allreduce_algorithm", JobShape(1000, 0.1), ["recursive_doubling", "ring"]),
    ],
)
def test_what_cannot_help_is_not_a_candidate(
    accepts: Callable[[str, str], bool], shape: JobShape, expected: list[str]
) -> None:
    moves: Moves = {
        "cycle_time": {"1": 0, "2.5": 0, "5": 0, "10": 0, "25": 0},
        "fusion_threshold": {"8M": 0, "16M": 0, "32M": 0, "64M": 0, "128M": 0},
        "allreduce_algorithm": {"recursive_doubling": 0, "ring": 0},
    }
    found = [(knob, value) for one in Space(moves, shape).candidates() for knob, value in one.items()]
    assert [value for knob, value in found if accepts(knob, value)] == expected


def test_a_segment_size_is_tried_only_with_an_algorithm_that_has_segments() -> None:
    sizes = [{"segment_size": "32K"}, {"segment_size": "1M"}]
    speeds = {"segmented_ring": 0.8, "ring": 0.7, "32K": 0.9, "1M": 1.3}

    def times_of(block: Block) -> BlockTimes:
        step = 1.0
        for value in block.settings.values():
            step *= speeds[value]
        return BlockTimes([step * (1 + 0.001 * (one % 3)) for one in range(block.steps)], waited=block.steps)

    without = among(10 * STEPS, [{"allreduce_algorithm": "ring"}, *sizes])
    assert drive(without, times_of)[0].settings == {"allreduce_algorithm": "ring"}
    assert len(without.trials) == 1
    outcome, _ = drive(among(10 * STEPS, [{"allreduce_algorithm": "segmented_ring"}, *sizes]), times_of)
    assert outcome.settings == {"allreduce_algorithm": "segmented_ring", "segment_size": "32K"}
    ring_last = [{"allreduce_algorithm": "segmented_ring"}, sizes[0], {"allreduce_algorithm": "ring"}]
    speeds["ring"] = 0.5
    assert drive(among(10 * STEPS, ring_last), times_of)[0].settings == {"allreduce_algorithm": "ring"}


@pytest.mark.parametrize("several_nodes", [True, False])
def test_the_eager_limit_between_nodes_is_tried_only_with_several_nodes(several_nodes: bool) -> None:
    moves: dict[str, dict[str, object]] = {
        "eager_threshold": {"1M": {}},
        "segment_size": {"32K": {}},
        "allreduce_algorithm": {"ring": {}},
    }
    found = Space(moves, JobShape(1 << 26, 1.0, several_nodes)).candidates()
    assert ({"eager_threshold": "1M"} in found) == several_nodes
    assert found[-1] == {"segment_size": "32K"}


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (0, ["cycle_time"]),
        ((64 << 10) - 1, ["cycle_time"]),
        (64 << 10, ["cycle_time", "hvscale_broadcast", "broadcast_algorithm", "hvscale_broadcast"]),
        (2 << 20, ["hvscale_broadcast", "broadcast_algorithm", "cycle_time", "hvscale_broadcast"]),
    ],
)
def test_large_broadcasts_in_the_steps_are_tuned(largest: int, expected: list[str]) -> None:
    """Before the other knobs if they are larger than all gradients."""
    moves: dict[str, dict[str, object]] = {
        "cycle_time": {"5": {}},
        "hvscale_broadcast": {"chain": {}, "two_level": {}},
        "broadcast_algorithm": {"binomial": {}},
    }
    found = Space(moves, JobShape(1 << 20, 1.0, largest_broadcast=largest)).candidates()
    assert [knob for one in found for knob in one] == expected


def test_the_library_s_broadcast_is_not_tried_beside_hvscale_s() -> None:
    both = {"broadcast_algorithm": "binomial", "cycle_time": "5"}
    assert applicable({**both, "hvscale_broadcast": "off"}) == {**both, "hvscale_broadcast": "off"}
    of_hvscale = {"cycle_time": "5", "hvscale_broadcast": "chain"}
    assert applicable({**both, **of_hvscale}) == of_hvscale


# A job over a network: 160 gradients of 1 MiB, ready from 0.1 to 0.4 s after the begin of a step.
GRADIENTS = [(0.1 + 0.3 * number / 160, 1 << 20) for number in range(160)]
COSTS = {"": MessageCost(1e-3, 2e-8), "ring": MessageCost(2e-3, 1e-8), "segmented_ring": MessageCost(1e-3, 4e-8)}
MOVES: Moves = {
    "cycle_time": {"2.5": 0, "5": 0, "10": 0},
    "fusion_threshold": {"1M": 0, "16M": 0, "64M": 0},
    "allreduce_algorithm": {"ring": 0, "segmented_ring": 0},
}
AFTER = 0.05  # seconds of a step after the last gradient


class SimulatedJob:
    """Its steps are those of the model, with noise; a change of the algorithm takes `restart` s."""

    def __init__(self, costs: dict[str, MessageCost], noise: float = 0.01, restart: float = 0.1) -> None:
        self.costs, self.noise, self.restart = costs, noise, restart
        self.source = random.Random(1)  # noqa: S311 - no secret
        self.current: Settings = {}
        self.probed = 0.0

    def shape(self) -> JobShape:
        size = sum(size for _, size in GRADIENTS)
        return JobShape(size, self.seconds({}), True, GRADIENTS, largest_message=128 << 20)

    def seconds(self, settings: Settings) -> float:
        cost = self.costs[settings.get("allreduce_algorithm", "")]
        threshold = int(settings.get("fusion_threshold", "128M")[:-1]) << 20
        cycle = float(settings.get("cycle_time", "1")) / 1e3
        return AFTER + communication_end(GRADIENTS, threshold, cycle, cost)

    def times_of(self, block: Block) -> BlockTimes:
        algorithm = "allreduce_algorithm"
        switch = self.restart if block.settings.get(algorithm) != self.current.get(algorithm) else 0.0
        self.current = block.settings
        if block.probe:
            message = self.costs[block.settings.get(algorithm, "")].seconds(block.probe)
            self.probed += switch + message
            return BlockTimes([], switch, probe=message)
        seconds = self.seconds(block.settings)
        steps = [seconds * self.source.lognormvariate(0, self.noise) for _ in range(block.steps)]
        return BlockTimes(steps, switch, 0.5 * sum(steps))


def steps_before(blocks: Sequence[Block], is_wanted: Callable[[Settings], bool]) -> int:
    first = next(place for place, block in enumerate(blocks) if block.steps and is_wanted(block.settings))
    return sum(block.steps for block in blocks[:first])


def test_timed_messages_and_the_model_name_the_first_candidate() -> None:
    """The fastest algorithm with the best threshold, right after the profile."""
    job = SimulatedJob(COSTS)
    search = LiveSearch(STEPS, Space(MOVES, job.shape()))
    outcome, blocks = drive(search, job.times_of)
    first = search.trials[0].settings
    assert first["allreduce_algorithm"] == "ring"
    grid = [
        {"allreduce_algorithm": "ring", "fusion_threshold": threshold, "cycle_time": cycle}
        for threshold in MOVES["fusion_threshold"]
        for cycle in MOVES["cycle_time"]
    ]
    best = min(map(job.seconds, grid))
    assert job.seconds(first) <= 1.02 * best
    assert steps_before(blocks, lambda settings: settings == first) == PROFILE_STEPS
    assert outcome.state == "tuned"
    assert job.seconds(outcome.settings) <= job.seconds(first)
    assert not any(trial.settings.get("allreduce_algorithm") == "segmented_ring" for trial in search.trials)


def test_timed_messages_cost_little() -> None:
    """With the defaults best, the phase loses at most its 1 %, half of it for messages."""
    slower = {"": COSTS["ring"], "ring": COSTS[""], "segmented_ring": COSTS["segmented_ring"]}
    job = SimulatedJob(slower, noise=0.0)
    search = LiveSearch(STEPS, Space({"allreduce_algorithm": MOVES["allreduce_algorithm"]}, job.shape()))
    outcome, blocks = drive(search, job.times_of)
    assert outcome.state == "defaults"
    assert 0 < job.probed == pytest.approx(search.probed)
    assert search.probed <= PROBE_SHARE * search.budget() + 0.1 + slower["segmented_ring"].seconds(128 << 20)
    assert search.lost <= search.budget()
    assert sum(block.steps for block in blocks) == PROFILE_STEPS  # no step with a slower algorithm


def test_a_slow_restart_is_not_repeated_for_other_algorithms() -> None:
    """The first restart shows what one takes; then no other algorithm is timed or tried."""
    job = SimulatedJob(COSTS, restart=60.0)
    _, blocks = drive(LiveSearch(STEPS, Space(MOVES, job.shape())), job.times_of)
    assert len({block.settings.get("allreduce_algorithm") for block in blocks} - {None}) == 1


def test_short_steps_leave_no_time_for_restarts() -> None:
    job = SimulatedJob(COSTS)
    shape = JobShape(1 << 20, 0.01, True, [(0.005, 1 << 20)], largest_message=1 << 20)
    search = LiveSearch(STEPS, Space(MOVES, shape))
    job.seconds = lambda settings: 0.01  # type: ignore[method-assign]
    _, blocks = drive(search, job.times_of)
    assert any(block.probe for block in blocks)
    assert all("allreduce_algorithm" not in block.settings for block in blocks if block.probe)


@given(
    gradients=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 1 << 24)), min_size=1, max_size=60),
    threshold=st.integers(0, 1 << 26),
    cycle=st.floats(0, 0.1),
    cost=st.builds(MessageCost, st.floats(0, 1e-2), st.floats(0, 1e-7)),
)
def test_the_model_sends_every_gradient_after_it_is_ready(
    gradients: list[tuple[float, int]], threshold: int, cycle: float, cost: MessageCost
) -> None:
    ordered = sorted(gradients)
    end = communication_end(ordered, threshold, cycle, cost)
    wire = cost.per_byte * sum(size for _, size in ordered)
    least = max(wire, ordered[-1][0] + cost.seconds(ordered[-1][1]))
    most = ordered[-1][0] + wire + len(ordered) * (cost.latency + cycle)
    assert least * (1 - 1e-9) <= end <= most * (1 + 1e-9) + cycle


def test_the_model_packs_up_to_the_threshold() -> None:
    """Four gradients are ready at once: two messages of two; one; four."""
    ready = 4 * [(0.0, 100)]
    cost = MessageCost(1.0, 0.0)
    assert [communication_end(ready, threshold, 0.0, cost) for threshold in (200, 400, 0)] == [2.0, 1.0, 4.0]


@given(st.floats(0, 1), st.floats(0, 1e-6), st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_a_cost_is_fitted_to_two_messages(latency: float, per_byte: float, small: int, more: int) -> None:
    true = MessageCost(latency, per_byte)
    found = fitted_cost((small, true.seconds(small)), (small + more, true.seconds(small + more)))
    assert found.seconds(small) == pytest.approx(true.seconds(small), rel=1e-6, abs=1e-9)
    assert found.per_byte >= 0
    assert found.latency >= 0
