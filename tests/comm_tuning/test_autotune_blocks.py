"""The blocks that the search of --autotune runs, and what it counts, worked out by hand.

A step takes 2 s with the defaults. The first one after a switch takes longer.
"""

import math
from collections.abc import Callable, Sequence

import pytest

from hvscale.comm_tuning.autotune.rank_side.candidates import JobShape, Space
from hvscale.comm_tuning.autotune.rank_side.request import Remembered, Settings
from hvscale.comm_tuning.autotune.rank_side.search import (
    NO_GAIN,
    PROFILE_STEPS,
    Block,
    BlockTimes,
    LiveSearch,
    Outcome,
    interval,
    log_ratio,
)
from tests.comm_tuning.searches import among, drive

DEFAULTS: Settings = {}
OTHER, THIRD = {"cycle_time": "5"}, {"cycle_time": "10"}
RING, SEGMENT = {"allreduce_algorithm": "ring"}, {"segment_size": "32K"}


class Job:
    """Steps that take given seconds, over and over; each switch makes the next one `slower`."""

    def __init__(
        self, switch: float = 0.0, slower: float = 0.0, decision: float = 0.0, **seconds: float | list[float]
    ) -> None:
        self.switch, self.slower, self.decision = switch, slower, decision
        self.current: Settings = {}
        self.is_new = True
        self.seconds = {name: found if isinstance(found, list) else [found] for name, found in seconds.items()}
        self.used: dict[str, int] = dict.fromkeys(self.seconds, 0)

    def times_of(self, block: Block) -> BlockTimes:
        switched = block.settings != self.current
        self.is_new |= switched
        self.current = block.settings
        name = "_".join(block.settings.values()) or "defaults"
        name = name if name[0].isalpha() else f"cycle_{name}"
        steps = []
        for _ in range(block.steps):
            of_settings = self.seconds[name]
            steps.append(of_settings[self.used[name] % len(of_settings)] + (self.slower if self.is_new else 0.0))
            self.used[name] += 1
            self.is_new = False
        waited = 0.25 * sum(steps)
        return BlockTimes(steps, self.switch if switched else 0.0, waited, decision=self.decision)


def blocks_of(search: LiveSearch, job: Job) -> tuple[Outcome, list[tuple[Settings, int]]]:
    """The outcome, and the settings and steps of each block."""
    outcome, blocks = drive(search, job.times_of)
    return outcome, [(block.settings, block.steps) for block in blocks]


def test_a_faster_candidate_costs_what_its_blocks_say() -> None:
    """Kept after four steps and proven in three pairs, whose first step does not count."""
    search = among(150, [OTHER])
    outcome, blocks = blocks_of(search, Job(switch=0.25, slower=0.5, decision=0.0625, defaults=2, cycle_5=1.5))
    trial = [(OTHER, 1), (OTHER, 1), (OTHER, 2)]
    # The candidate is in effect, so three steps are enough; as for the defaults of the second pair.
    proof = [(OTHER, 3), (DEFAULTS, 4), (DEFAULTS, 3), (OTHER, 4), (DEFAULTS, 4), (OTHER, 4)]
    assert blocks == [(DEFAULTS, PROFILE_STEPS), *trial, *proof]
    assert outcome == Outcome("tuned", "", OTHER, pairs=3 * [(2.0, 1.5)], gain=(4 / 3, 4 / 3, 4 / 3))
    [tried] = search.trials
    assert (tried.settings, tried.steps, tried.kept) == (OTHER, 3, True)
    assert tried.ratio == pytest.approx(0.75)
    assert search.used == PROFILE_STEPS + 4 + 22
    assert search.base == 2
    # 15 steps took 0.5 s less each, 5 switches 0.25 s and 0.5 s of the next step, 10 decisions.
    assert search.lost == pytest.approx(15 * -0.5 + 5 * (0.25 + 0.5) + 10 * 0.0625)
    # The first was followed by one step, which did not take longer than the defaults' 2 s.
    assert search.switches == {False: [0.25, *4 * [0.75]], True: []}
    assert search.switch_seconds() == 0.75
    assert search.wait_share == 0.25
    assert search.best == OTHER
    assert not search.drops_remembered


@pytest.mark.parametrize(
    ("seconds", "trial", "ratio", "counted"),
    [
        pytest.param(6.5, [(OTHER, 1)], 3.25, 1, id="hopeless"),
        pytest.param(2.5, [(OTHER, 1), (OTHER, 1)], 1.25, 1, id="slower"),
        pytest.param(6.0, [(OTHER, 1), (OTHER, 1)], 3.0, 1, id="three times as long is not hopeless"),
        pytest.param(
            2.0, [(OTHER, 1), (OTHER, 1), (OTHER, 2), (DEFAULTS, 4), (OTHER, 4)], 1.0, 6, id="equal is compared twice"
        ),
    ],
)
def test_a_candidate_that_is_not_faster_is_followed_by_the_defaults(
    seconds: float, trial: list[tuple[Settings, int]], ratio: float, counted: int
) -> None:
    search = among(150, [OTHER])
    outcome, blocks = blocks_of(search, Job(defaults=2, cycle_5=seconds))
    assert blocks == [(DEFAULTS, PROFILE_STEPS), *trial, (DEFAULTS, 3)]
    assert outcome == Outcome("defaults", "none of 1 candidates was faster")
    [tried] = search.trials
    assert (tried.settings, tried.steps, tried.kept) == (OTHER, counted, False)
    assert tried.ratio == pytest.approx(ratio)


def test_how_long_switches_take_is_not_held_against_a_first_step() -> None:
    """The first trial's took up to 1.5 s with the step after it: a step is hopeless above 7.5 s."""
    _, blocks = blocks_of(among(600, [OTHER, THIRD]), Job(1.0, defaults=2, cycle_5=2.5, cycle_10=[7.375, 2.5]))
    assert [block for block in blocks if block[0] == THIRD] == [(THIRD, 1), (THIRD, 1)]
    _, blocks = blocks_of(among(600, [OTHER, THIRD]), Job(1.0, defaults=2, cycle_5=2.5, cycle_10=[7.625, 2.5]))
    assert [block for block in blocks if block[0] == THIRD] == [(THIRD, 1)]


def test_a_candidate_without_effect_is_passed_over() -> None:
    """Segments apply to none of the algorithms in effect."""
    outcome, _ = blocks_of(among(150, [SEGMENT, OTHER]), Job(defaults=2, cycle_5=1.5))
    assert outcome.settings == OTHER


@pytest.mark.parametrize(("steps", "tried"), [(63, 0), (64, 1)])
def test_a_trial_leaves_steps_for_the_proof(steps: int, tried: int) -> None:
    """12 of the profile, 12 of the trial, and 5 pairs of 4 steps each."""
    search = among(steps, [OTHER])
    outcome, _ = blocks_of(search, Job(defaults=2, cycle_5=2.5))
    assert len(search.trials) == tried
    nothing = "no steps were left to try a candidate: add --autotune-steps 64"
    assert outcome.reason == ("none of 1 candidates was faster" if tried else nothing)


def test_ranks_that_wait_for_one_percent_are_tuned() -> None:
    _, blocks = drive(among(150, [OTHER]), lambda block: BlockTimes(block.steps * [2.0], waited=0.24))
    assert len(blocks) > 1


@pytest.mark.parametrize(
    ("seconds", "candidates", "enough"),
    [
        pytest.param(0.003, [OTHER], 1360, id="four switches of 10 ms and a fifth of a step"),
        pytest.param(0.007, [RING], 1740, id="four restarts of 30 ms and a fifth of a step"),
        pytest.param(0.003, [RING, OTHER], 1360, id="the cheapest"),
        pytest.param(0.02, [OTHER], 300, id="at least twice as many as there were"),
    ],
)
def test_steps_that_are_too_short_say_how_many_would_do(
    seconds: float, candidates: list[Settings], enough: int
) -> None:
    """A trial may cost 1 % of the phase, in whole tens of steps."""
    outcome, _ = blocks_of(among(150, candidates), Job(defaults=seconds))
    expected = f"steps of {seconds * 1e3:.0f} ms are too short to try a candidate: add --autotune-steps {enough}"
    assert outcome == Outcome("defaults", expected)


def test_a_switch_is_expected_to_take_10_ms_and_a_restart_30_until_one_is_timed() -> None:
    search = among(150, [OTHER])
    assert (search.switch_seconds(), search.switch_seconds(restarts=True)) == (0.01, 0.03)


def test_what_would_cost_too_much_is_counted() -> None:
    """The switches to the first candidate and back take 1 s each: 2 of the 3 s that may be lost."""
    search = among(150, [OTHER, THIRD, RING])
    outcome, _ = blocks_of(search, Job(switch=1.0, defaults=2, cycle_5=2.25, cycle_10=2.25))
    assert outcome.reason == "none of 1 candidates was faster, and 2 more would cost over 1% of the phase"


def test_without_candidates_there_is_nothing_to_try() -> None:
    assert blocks_of(among(150, []), Job(defaults=2))[0] == Outcome("defaults", "there is nothing to try")


def test_a_kept_candidate_whose_proof_fails_keeps_the_defaults() -> None:
    """It was faster in its trial only: the proof ends after five pairs."""
    search = among(150, [OTHER])
    job = Job(defaults=2, cycle_5=[*7 * [1.5], *8 * [2.5]])
    outcome, _ = blocks_of(search, job)
    assert (outcome.state, outcome.reason, outcome.settings) == ("defaults", NO_GAIN, {})
    # Seven steps of 1.5 s, eight of 2.5 s, and so on.
    assert outcome.pairs == [(2.0, 1.5), (2.0, 2.5), (2.0, 2.5), (2.0, 1.5), (2.0, 1.5)]
    assert outcome.gain == interval([default / tuned for default, tuned in outcome.pairs])
    assert outcome.gain[0] > 1 > outcome.gain[1]


def proven(pairs: Sequence[tuple[float, float]], is_proven: bool = True) -> tuple[Outcome, list[tuple[Settings, int]]]:
    """The outcome of remembered settings and its blocks, from the seconds of each pair's sides."""
    done: dict[bool, int] = {False: 0, True: 0}

    def times_of(block: Block) -> BlockTimes:
        is_tuned = bool(block.settings)
        seconds = pairs[min(done[is_tuned], len(pairs) - 1)][is_tuned]
        done[is_tuned] += 1
        # The mean of the last three is that of the pair; the first of four does not count.
        steps = [seconds + 9, seconds - 0.5, seconds, seconds + 0.5]
        return BlockTimes(steps[-block.steps :])

    outcome, blocks = drive(among(150, [], Remembered(OTHER, is_proven)), times_of)
    return outcome, [(block.settings, block.steps) for block in blocks]


def test_a_proof_alternates_which_side_is_first() -> None:
    """An unclear gain of remembered settings ends after six pairs, in Thue-Morse order."""
    pairs = 3 * [(3.0, 2.0), (2.0, 2.0)]
    outcome, blocks = proven(pairs)
    assert outcome.state == "defaults"
    expected = []
    for tuned_first in (True, False, False, True, False, True):
        expected += [OTHER, DEFAULTS] if tuned_first else [DEFAULTS, OTHER]
    assert [settings for settings, _ in blocks] == expected
    # The first step after a switch does not count; without a switch, three are enough.
    assert [steps for _, steps in blocks] == [4, 4, 3, 4, 4, 4, 3, 4, 3, 4, 3, 4]


CLEAR_AT_95 = [(2.0, 1.625), (2.0, 1.5), (2.0, 1.375)]


@pytest.mark.parametrize(
    ("pairs", "is_proven", "state", "count"),
    [
        pytest.param([(2.0, 1.0)], True, "tuned", 3, id="clear"),
        pytest.param([(2.0, 1.0)], False, "tuned", 3, id="clear at 99 %"),
        pytest.param(CLEAR_AT_95, True, "tuned", 3, id="clear at 95 %, proven before"),
        pytest.param([*CLEAR_AT_95, (2.0, 1.5)], False, "tuned", 5, id="clear at 95 %, not proven before"),
        pytest.param([(2.0, 2.5)], True, "defaults", 3, id="slower"),
        pytest.param([(2.0, 2.0)], True, "defaults", 3, id="equal"),
        pytest.param([(2.0, 2.5)], False, "defaults", 5, id="slower, not proven before"),
        pytest.param([(3.0, 2.0), (2.0, 2.0), (2.0, 1.5), (2.0, 1.5)], True, "tuned", 5, id="clear after five"),
    ],
)
def test_a_proof_ends_when_the_gain_is_clear(
    pairs: list[tuple[float, float]], is_proven: bool, state: str, count: int
) -> None:
    outcome, blocks = proven(pairs, is_proven)
    assert (outcome.state, len(blocks)) == (state, 2 * count)
    if state == "tuned":
        filled = [*pairs, *(count - len(pairs)) * pairs[-1:]]
        assert outcome.pairs == filled
        assert outcome.remembered
        assert outcome.gain == interval([default / tuned for default, tuned in filled])


def test_what_remembered_settings_cost_is_known_once_the_defaults_were_timed() -> None:
    search = among(150, [], Remembered(OTHER, proven=True))
    outcome, _ = blocks_of(search, Job(switch=0.25, defaults=2, cycle_5=1.5))
    assert outcome.state == "tuned"
    # The first block is compared with nothing. 8 steps gained 0.5 s each, 4 switches took 0.25 s.
    assert search.lost == pytest.approx(8 * -0.5 + 4 * 0.25)


# Messages that are timed. The search may lose 1 % of all steps, half of it for messages.

SMALL, LARGEST = 65536, 1 << 30


class Messages(Job):
    """Messages that take given seconds by algorithm ("" for the job's own) and bytes."""

    def __init__(self, seconds_of: Callable[[str, int], float], step: float, decision: float) -> None:
        super().__init__(0.03, decision=decision, defaults=step, ring=step)
        self.seconds_of = seconds_of

    def times_of(self, block: Block) -> BlockTimes:
        if block.steps:
            return super().times_of(block)
        switch = self.switch if block.settings != self.current else 0.0
        self.current = block.settings
        seconds = self.seconds_of(block.settings.get("allreduce_algorithm", ""), block.probe)
        return BlockTimes([], switch, probe=seconds, decision=self.decision)


def timed_messages(
    seconds_of: Callable[[str, int], float],
    *,
    steps: int = 1000,
    step: float = 1.0,
    largest: int = LARGEST,
    decision: float = 0.0,
) -> tuple[LiveSearch, list[tuple[str, int]]]:
    """The search, and the algorithm and bytes of each message that it timed."""
    shape = JobShape(1 << 20, step, largest_message=largest)
    search = LiveSearch(steps, Space({"allreduce_algorithm": {"ring": {}}}, shape))
    _, blocks = drive(search, Messages(seconds_of, step, decision).times_of)
    return search, [(block.settings.get("allreduce_algorithm", ""), block.probe) for block in blocks if block.probe]


# Of 5 s, two small messages take 0.2 s, and a restart is expected to take 0.03 s. A tenth of the
# rest is a margin. The others are for two messages with each of two algorithms, at 0.1 s for SMALL.
LONG = int(SMALL * 0.9 * (5 - 0.2 - 0.03) / 0.4)


def test_a_faster_algorithm_is_timed_with_both_sizes() -> None:
    search, timed = timed_messages(lambda algorithm, size: (0.05 if algorithm else 0.1) * size / SMALL, decision=2**-30)
    assert timed == [*2 * [("", SMALL)], *2 * [("", LONG)], *2 * [("ring", LONG)], *2 * [("ring", SMALL)]]
    own, ring = search.space.costs[""], search.space.costs["ring"]
    assert (own.latency, own.per_byte) == pytest.approx((0.0, 0.1 / SMALL), abs=1e-9)
    assert (ring.latency, ring.per_byte) == pytest.approx((0.0, 0.05 / SMALL), abs=1e-9)
    messages = 2 * 0.1 + 2 * LONG * 0.1 / SMALL + 2 * LONG * 0.05 / SMALL + 2 * 0.05
    assert search.probed == pytest.approx(messages + 0.03 + 8 * 2**-30, rel=1e-11)


@pytest.mark.parametrize(("ratio", "repeated"), [(1.0, 2), (1.25, 2), (1.75, 1)])
def test_an_algorithm_that_is_not_faster_is_timed_with_the_large_size_only(ratio: float, repeated: int) -> None:
    own = {size: 0.05 + 0.05 * size / SMALL for size in (SMALL, LONG)}
    search, timed = timed_messages(lambda algorithm, size: (ratio if algorithm else 1.0) * own[size])
    assert timed == [*2 * [("", SMALL)], *2 * [("", LONG)], *repeated * [("ring", LONG)]]
    # Its small messages are taken to be as fast as the job's own.
    assert search.space.costs["ring"].seconds(SMALL) == pytest.approx(0.1)
    assert search.space.costs["ring"].seconds(LONG) == pytest.approx(ratio * own[LONG])


def test_messages_of_a_job_without_longer_ones_are_timed_once() -> None:
    search, timed = timed_messages(lambda algorithm, size: 0.05 if algorithm else 0.1, largest=SMALL)
    assert timed == [*2 * [("", SMALL)], *2 * [("ring", SMALL)]]
    assert search.space.costs["ring"].seconds(SMALL) == pytest.approx(0.05)
    assert timed_messages(lambda algorithm, size: 0.1, largest=0)[1] == []


def test_timed_messages_are_lost_time() -> None:
    search = LiveSearch(1000, Space({}, JobShape(1 << 20, 1.0, largest_message=SMALL)))
    drive(search, Messages(lambda algorithm, size: 0.25, step=1.0, decision=0.125).times_of)
    assert search.probed == 2 * (0.25 + 0.125)
    assert search.lost == search.probed + 0.125  # the decision about the first steps


def test_the_first_step_after_a_timed_message_may_be_slower() -> None:
    """The ring is in effect since its message. Its first step does not count."""
    search, _ = timed_messages(lambda algorithm, size: 0.05 if algorithm else 0.1, largest=SMALL)
    [trial] = search.trials
    assert (trial.settings, trial.steps) == (RING, 3 + 3)
    assert trial.ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("large_seconds", "is_timed"),
    [
        pytest.param(1.19, True, id="within the limit"),
        pytest.param(1.195, False, id="beyond the limit, by the 0.03 s that a restart may take"),
    ],
)
def test_an_algorithm_is_timed_if_its_messages_are_within_the_limit(large_seconds: float, is_timed: bool) -> None:
    """Of 5 s, two small messages take 0.2 s; two large ones follow, and two more if they may."""
    _, timed = timed_messages(lambda algorithm, size: 0.1 if size == SMALL else large_seconds)
    assert (("ring", LONG) in timed) == is_timed


@pytest.mark.parametrize(("steps", "is_timed"), [(200, False), (320, True)])
def test_algorithms_are_timed_if_two_restarts_take_less_than_half_the_limit(steps: int, is_timed: bool) -> None:
    """Two restarts are expected to take 0.06 s. The limit is 0.1 s, and 0.16 s."""
    _, timed = timed_messages(lambda algorithm, size: 1e-3 * size / SMALL, steps=steps, step=0.1)
    assert any(algorithm == "ring" for algorithm, _ in timed) == is_timed


def test_a_ratio_has_an_upper_limit_from_the_smaller_group() -> None:
    """Welch's: the variances of the means, 2 / 2 and 8 / 2, add up."""
    low, high = [1.0, math.exp(2)], [1.0, math.exp(4)]
    assert log_ratio(low, high, (1.0, 9.0)) == pytest.approx((math.exp(-1), math.exp(-1 + math.sqrt(5))))
    more = [1.0, math.exp(2), math.exp(4)]  # a variance of 4, of three
    expected = math.exp(2.0 * math.sqrt(4 / 3 + 4 / 3))
    assert log_ratio(more, more, (1.0, 2.0, 9.0)) == pytest.approx((1.0, expected))
    assert log_ratio(more, more, (2.0,)) == pytest.approx((1.0, expected))  # beyond the table: its last
    assert log_ratio([2.0], more, (1.0,)) == pytest.approx((2.0 / math.exp(2), math.inf))


def test_one_ratio_says_nothing_about_its_interval() -> None:
    assert interval([2.0]) == pytest.approx((2.0, 0.0, math.inf))
