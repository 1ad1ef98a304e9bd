"""The search, on rank 0: which settings the next steps use, and when a candidate is dropped."""

import math
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hvscale.comm_tuning.autotune.rank_side.candidates import Space
from hvscale.comm_tuning.autotune.rank_side.request import Remembered, Settings
from hvscale.comm_tuning.autotune.rank_side.step_model import fitted_cost

PROFILE_STEPS = 12  # with the defaults, before the first candidate
MAX_LOSS = 0.01  # of the time of the tuned phase, if the defaults are best
MIN_WAIT = 0.01  # share of a step that ranks wait for communication, below which nothing is tuned
TRIAL_STEPS = 12  # of a candidate that is not dropped early, and of its reference
PAIR_STEPS = 4  # of each side of a pair of the proof; the first step after a switch does not count
PAIRS = 5
FIRST_PAIRS = 3  # after which the proof ends if the 99 % interval of the gain is above 1
TRIAL_AND_PROOF_STEPS = TRIAL_STEPS + 2 * PAIRS * PAIR_STEPS
PAIRS_REMEMBERED = 3  # of settings that have been proven before
# Expected until one of the kind has been timed: in place, and with a restart of Horovod (measured
# with 4 ranks: 0.02 to 0.04 s).
FIRST_SWITCH_SECONDS = {False: 0.01, True: 0.03}
# The knobs whose change restarts Horovod.
RESTARTING = ("allreduce_algorithm", "segment_size", "eager_threshold", "hvscale_broadcast", "broadcast_algorithm")
SEGMENTED = ("segmented_ring", "tree")  # algorithms that `segment_size` applies to
EXPECTED_LOSS = 0.1  # of a step with a candidate that will be dropped
TRIAL_SWITCHES = 4  # of a candidate that is not dropped early: to it and back, twice
HOPELESS_MESSAGE = 1.5  # a message that takes this many times the reference's is not repeated
# A trial ends after a first step longer than this many times the reference's, plus a switch. With 4
# ranks, the first step after a switch was measured to take up to 2.5 times those that follow.
HOPELESS_STEP = 3.0
RECENT = 12  # steps of the reference that a candidate is compared with
PROBE_SHARE = 0.5  # of what the search may lose, for timed messages
PROBE_MARGIN = 0.1  # of that, for decisions and for messages that are slower than planned
PROBES = 2  # messages of each size, of which the faster one counts; the first of a name is negotiated
SMALL_PROBE = 64 << 10  # bytes
# Two-sided quantiles of Student's t for 1, 2, ... degrees of freedom (core.statistics needs SciPy).
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
T_99 = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055)
T_90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782)

NO_GAIN = "the best candidate had no proven gain"

OutcomeState = Literal["tuned", "defaults"]


@dataclass(frozen=True)
class Block:
    """Settings for the next `steps` steps, or for one message of `probe` bytes before them."""

    settings: Settings
    steps: int = 0
    probe: int = 0


@dataclass(frozen=True)
class BlockTimes:
    """Seconds of a block's steps, of the switch before it, and of waiting within its steps.

    `probe`: of its message. `decision`: until all ranks knew the block.
    """

    steps: Sequence[float]
    switch: float = 0.0
    waited: float = 0.0
    probe: float = 0.0
    decision: float = 0.0


@dataclass(frozen=True)
class LiveTrial:
    """A candidate that was tried: its step time over the reference's, and whether it was kept."""

    settings: Settings
    steps: int
    ratio: float
    kept: bool


@dataclass
class Outcome:
    """The end of the search.

    `state`: "tuned": `settings` are proven faster. `remembered`: they were remembered. `pairs`:
    seconds of a step with the defaults and with the settings, of each pair of the proof. `gain`:
    default / tuned with the limits of its 95 % interval.
    """

    state: OutcomeState
    reason: str
    settings: Settings = field(default_factory=dict)
    remembered: bool = False
    pairs: list[tuple[float, float]] = field(default_factory=list)
    gain: tuple[float, float, float] | None = None


Plan = Generator[Block, BlockTimes, Outcome]
Measuring = Generator[Block, BlockTimes, list[float]]
Verdict = Generator[Block, BlockTimes, bool]
Probing = Generator[Block, BlockTimes, None]
Timing = Generator[Block, BlockTimes, float]


class LiveSearch:
    """Yields blocks of steps and receives their times; returns the outcome.

    The settings of the outcome are in effect after it only if the caller switches to them. `lost`:
    seconds that the search has cost so far, negative once it has gained more. `probed`: those of
    timed messages. `best`: the best settings so far; empty for the defaults. `drops_remembered`:
    the remembered settings do not win, or cannot be used.
    """

    def __init__(self, steps: int, space: Space, remembered: Remembered | None = None) -> None:
        self.steps, self.space, self.remembered = steps, space, remembered
        self.best: Settings = {}
        self.current: Settings = {}
        self.settles = True  # the next step is slower than those after it
        self.probed = 0.0
        self.used = 0
        self.lost = 0.0
        self.base = 0.0  # seconds of a step with the defaults
        self.switches: dict[bool, list[float]] = {False: [], True: []}  # by whether Horovod restarted
        self.samples: dict[tuple[tuple[str, str], ...], list[float]] = {}
        self.trials: list[LiveTrial] = []
        self.drops_remembered = False
        self.of_defaults = [0.0, 0.0]  # seconds of steps with the defaults, and of waiting in them

    def plan(self) -> Plan:
        if self.remembered:
            outcome = yield from self._prove_remembered(self.remembered)
            if outcome.state == "tuned":
                return outcome
            self.drops_remembered = True
        else:
            profile = yield Block({}, PROFILE_STEPS)
            self._account({}, profile)
            share = self.wait_share
            if share is not None and share < MIN_WAIT:
                return self._keep(f"ranks wait for communication in only {share:.1%} of a step")
        yield from self._probe()
        costly: list[Settings] = []
        for candidate in self.space.candidates():
            settings = applicable({**self.best, **candidate})
            if settings == self.best:  # it has no effect with the best settings so far
                continue
            if self.used + TRIAL_AND_PROOF_STEPS > self.steps:
                break
            if self.lost + self._next_loss(settings, self.best) > self.budget():
                costly.append(settings)
            elif (yield from self._try(settings, self.best)):
                self.best = settings
        if not self.best:
            return self._keep(self._why_none(costly))
        outcome = yield from self._prove(self.best, PAIRS, PAIRS)
        return outcome if outcome.state == "tuned" else replace(outcome, reason=NO_GAIN)

    def _why_none(self, costly: list[Settings]) -> str:
        """Why no candidate was kept; `costly`: those that were not tried."""
        if not self.space.candidates():
            return "there is nothing to try"
        if not self.trials and not costly:
            enough = self.used + TRIAL_AND_PROOF_STEPS
            return f"no steps were left to try a candidate: add --autotune-steps {enough}"
        if self.trials:
            more = f", and {len(costly)} more would cost over {MAX_LOSS:.0%} of the phase" if costly else ""
            return f"none of {len(self.trials)} candidates was faster{more}"
        # The next start times messages again, which costs what it has cost here.
        loss = self.lost + min(self._next_loss(one, {}) for one in costly)
        needed = max(math.ceil(loss / (MAX_LOSS * self.base) / 10) * 10, 2 * self.steps)
        return f"steps of {self.base * 1e3:.0f} ms are too short to try a candidate: add --autotune-steps {needed}"

    def switch_seconds(self, restarts: bool = False) -> float:
        """Expected seconds of one switch, with the slower first step after it."""
        timed = self.switches[restarts]
        return statistics.median(timed) if timed else FIRST_SWITCH_SECONDS[restarts]

    @property
    def wait_share(self) -> float | None:
        """How much of a step with the defaults ranks wait for communication; None if unknown."""
        seconds, waited = self.of_defaults
        return waited / seconds if seconds else None

    def reject(self, settings: Settings) -> None:
        """Note that settings gave wrong results, or were refused."""
        if self.remembered is not None and settings == self.remembered.settings:
            self.drops_remembered = True

    def _next_loss(self, settings: Settings, best: Settings) -> float:
        """Expected seconds that a trial loses if the candidate is not faster."""
        restarts = restarting(settings) != restarting(best)
        return TRIAL_SWITCHES * self.switch_seconds(restarts) + 2 * EXPECTED_LOSS * self.base

    def budget(self) -> float:
        """Seconds that the whole search may lose."""
        return MAX_LOSS * self.steps * self.base

    def _probe(self) -> Probing:
        """Time messages with each algorithm, as far as that may cost."""
        job, algorithms, limit = self.space.job, self.space.algorithms, PROBE_SHARE * self.budget()
        if 2 * len(algorithms) * self.switch_seconds(restarts=True) > limit / 2:
            algorithms = []
        small_size = min(SMALL_PROBE, job.largest_message)
        if small_size <= 0 or limit <= 0:
            return
        small = yield from self._message({}, small_size)
        # What the changes leave is for messages as long as possible.
        left = (1 - PROBE_MARGIN) * (limit - self.probed - len(algorithms) * self.switch_seconds(restarts=True))
        affordable = small_size * left / (PROBES * (len(algorithms) + 1) * max(small, 1e-9))
        size = max(small_size, min(job.largest_message, int(affordable)))
        own = (yield from self._message({}, size)) if size > small_size else small
        self.space.costs[""] = fitted_cost((small_size, small), (size, own))
        for algorithm in algorithms:
            if self.probed + self.switch_seconds(restarts=True) + PROBES * own > limit:
                break
            settings = {"allreduce_algorithm": algorithm}
            seconds = yield from self._message(settings, size, hopeless=HOPELESS_MESSAGE * own)
            of_small = small
            if seconds < own and size > small_size:
                of_small = yield from self._message(settings, small_size)
            self.space.costs[algorithm] = fitted_cost((small_size, min(of_small, seconds)), (size, seconds))

    def _message(self, settings: Settings, size: int, hopeless: float = math.inf) -> Timing:
        """Seconds of a message; it is not repeated if it takes longer than `hopeless`."""
        seconds = math.inf
        for _ in range(PROBES):
            times = yield Block(settings, probe=size)
            self._account(settings, times)
            seconds = min(seconds, times.probe)
            if seconds > hopeless:
                break
        return seconds

    def _try(self, settings: Settings, best: Settings) -> Verdict:
        """Try a candidate against the best settings so far; a slower one ends within two steps."""
        reference = statistics.fmean(self._recent(best))
        known_switch = max(max(timed, default=0.0) for timed in self.switches.values())  # not this trial's
        [first] = yield from self._measure(settings, 1)
        if first > HOPELESS_STEP * reference + known_switch:
            return (yield from self._end_trial(settings, best, first / reference))
        [second] = yield from self._measure(settings, 1)
        if second > reference:
            return (yield from self._end_trial(settings, best, second / reference))
        yield from self._measure(settings, 2)
        ratio, high = log_ratio(self._recent(settings), self._recent(best), T_99)
        if high >= 1:  # not clear at once
            yield from self._measure(best, 4)
            yield from self._measure(settings, 4)
            ratio, high = log_ratio(self._recent(settings), self._recent(best), T_90)
        of_candidate = self._recent(settings)
        kept = high < 1
        self.trials.append(LiveTrial(settings, len(of_candidate), ratio, kept))
        if not kept:
            yield from self._measure(best, 3)
        return kept

    def _end_trial(self, settings: Settings, best: Settings, ratio: float) -> Verdict:
        self.trials.append(LiveTrial(settings, len(self.samples.get(key_of(settings), [])) or 1, ratio, False))
        yield from self._measure(best, 3)
        return False

    def _prove_remembered(self, remembered: Remembered) -> Plan:
        if remembered.proven:
            affordable = (self.steps - self.used) // (2 * PAIR_STEPS)
            limit = min(max(affordable, PAIRS_REMEMBERED), 2 * PAIRS_REMEMBERED)
            outcome = yield from self._prove(remembered.settings, PAIRS_REMEMBERED, limit)
        else:
            outcome = yield from self._prove(remembered.settings, PAIRS, PAIRS)
        return replace(outcome, remembered=outcome.state == "tuned")

    def _prove(self, settings: Settings, pairs: int, limit: int) -> Plan:
        """Compare settings with the defaults in pairs of blocks.

        After `pairs` of them a clear gain, or none, ends the proof; `limit` ends it in any case.
        """
        found: list[tuple[float, float]] = []
        gain: tuple[float, float, float] | None = None
        while len(found) < limit:
            sides: dict[bool, float] = {}
            # Thue-Morse order cancels drift; three or five pairs leave the settings in effect.
            tuned_first = len(found).bit_count() % 2 == 0
            for tuned in (tuned_first, not tuned_first):
                wanted = settings if tuned else {}
                # The block before may have had the same settings: then every step counts.
                steps = PAIR_STEPS if wanted != self.current or self.settles else PAIR_STEPS - 1
                times = yield from self._measure(wanted, steps)
                sides[tuned] = statistics.fmean(times[-(PAIR_STEPS - 1) :])
            found.append((sides[False], sides[True]))
            ratios = [default / tuned for default, tuned in found]
            gain = interval(ratios)
            if len(found) >= pairs and (gain[1] > 1 or gain[0] <= 1):
                break
            if len(found) == FIRST_PAIRS and interval(ratios, T_99)[1] > 1:
                break
        if gain is not None and gain[1] > 1:
            return Outcome("tuned", "", settings, pairs=found, gain=gain)
        return Outcome("defaults", "", pairs=found, gain=gain)

    def _keep(self, reason: str) -> Outcome:
        if self.remembered and self.drops_remembered:
            lose = "no longer win" if self.remembered.proven else "have no proven gain"
            return Outcome("defaults", f"the remembered settings {lose}, and {reason}")
        return Outcome("defaults", reason)

    def _measure(self, settings: Settings, steps: int) -> Measuring:
        """Run steps with these settings; returns the seconds of all of them."""
        times = yield Block(settings, steps)
        self._account(settings, times)
        return list(times.steps)

    def _account(self, settings: Settings, times: BlockTimes) -> None:
        switched = settings != self.current
        restarted = restarting(settings) != restarting(self.current)
        self.current = settings
        if not times.steps:
            self._account_probe(times, switched, restarted)
            return
        # The first step after a switch allocates buffers and negotiates every tensor again.
        settled, self.settles = not (switched or self.settles), False
        counted = list(times.steps if settled else times.steps[1:])
        self.used += len(times.steps)
        if not settings:
            self.of_defaults = [self.of_defaults[0] + sum(times.steps), self.of_defaults[1] + times.waited]
        self.samples.setdefault(key_of(settings), []).extend(counted)
        defaults = self.samples.get(())
        if defaults:
            self.base = statistics.median(defaults[-2 * RECENT :])
        if switched:
            typical = statistics.fmean(counted or self.samples[key_of(settings)] or [self.base])
            self.switches[restarted].append(times.switch + max(0.0, times.steps[0] - typical if typical else 0.0))
        if self.base and (switched or settings):
            self.lost += times.switch + sum(times.steps) - len(times.steps) * self.base
        self.lost += times.decision

    def _account_probe(self, times: BlockTimes, switched: bool, restarted: bool) -> None:
        cost = times.switch + times.probe + times.decision
        self.lost, self.probed = self.lost + cost, self.probed + cost
        if switched:
            self.settles = True
            self.switches[restarted].append(times.switch)

    def _recent(self, settings: Settings) -> list[float]:
        return self.samples[key_of(settings)][-RECENT:]


def restarting(settings: Settings) -> list[str | None]:
    """The values of the knobs whose change restarts Horovod."""
    return [settings.get(knob) for knob in RESTARTING]


def applicable(settings: Settings) -> Settings:
    """The settings without those that others make ineffective."""
    ignored = set()
    if settings.get("allreduce_algorithm") not in SEGMENTED:
        ignored.add("segment_size")
    if settings.get("hvscale_broadcast", "off") != "off":
        ignored.add("broadcast_algorithm")
    return {knob: value for knob, value in settings.items() if knob not in ignored}


def key_of(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))


def log_ratio(values: Sequence[float], reference: Sequence[float], quantiles: Sequence[float]) -> tuple[float, float]:
    """The ratio of geometric means, and the upper limit of its interval, by the t of `quantiles`.

    Welch's variance with the smaller group's degrees of freedom, which never narrows the interval.
    """
    logs = [[math.log(max(value, 1e-9)) for value in group] for group in (values, reference)]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    smallest = min(map(len, logs))
    if smallest < 2:
        return math.exp(difference), math.inf
    error = math.sqrt(sum(statistics.variance(group) / len(group) for group in logs))
    return math.exp(difference), math.exp(difference + quantiles[min(smallest - 1, len(quantiles)) - 1] * error)


def interval(ratios: Sequence[float], quantiles: Sequence[float] = T_95) -> tuple[float, float, float]:
    """The geometric mean of ratios and its interval, as in `core.statistics`."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    reach = quantiles[min(len(logs) - 1, len(quantiles)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)
