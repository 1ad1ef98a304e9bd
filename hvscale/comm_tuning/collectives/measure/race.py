"""Decides which variant of a collective to measure next at a size.

First a few variants of each kind, then the neighbours of the good ones, then the finalists until
their times differ significantly. This module takes no measurements and knows no library.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, log, sqrt

from hvscale.comm_tuning.collectives.decide.decide import MAX_LOSS_RATIO
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, AlgorithmChoice, Time

# Ratios of times at one size, each to the best time unless the comment says otherwise.
NEAR_RATIO = 1.1  # to the best of the same kind: for cheap calls, the neighbours of such a variant are tried too
CLOSE_RATIO = 1.2  # the slowest finalist, if calls are not cheap
POOR_RATIO = 1.5  # slower than this: not measured again at this size, and its neighbours are not tried
HOPELESS_RATIO = 2.0  # slower than this at two sizes without improving: not tried at the next size
FAR_RATIO = 3.0  # slower than this in its first sample: no second sample
IMPROVING_RATIO = 0.85  # a variant improves if its ratio falls below this share of its ratio at the size before
NARROW_RATIO = 0.015  # half of a confidence interval, relative to the time: precise enough
CHEAP_SECONDS = 0.02
# (seconds of a call, samples): a variant faster than this gets that many samples before it is
# judged by its minimum. The first call may take twice as long as later ones.
SAMPLES_BEFORE_JUDGING = ((CHEAP_SECONDS, 3), (2.0, 2))
MIN_SAMPLES, MIN_CHEAP_SAMPLES, MAX_SAMPLES = 3, 5, 11  # of a finalist
MAX_SAMPLING_SECONDS = 5.0  # for one variant at one size, after its minimum number of samples
EXHAUSTIVE_SAMPLES = 5
MAX_FINALISTS = 6
MIDDLE_PART_BYTES = 32 << 10  # below every library's eager limit

# The algorithm (hvscale's broadcast, or `library`), the library's algorithm, and a tree's radix.
Kind = tuple[str, str | None, int | None]


@dataclass(frozen=True)
class AlgorithmVariant:
    """The effect of a choice at one size: `part` bytes per send, `depth` parts in flight.

    Both are None if the whole message is sent at once.
    """

    kind: Kind
    part: int | None
    depth: int | None


def variant_of(choice: AlgorithmChoice, size: int) -> AlgorithmVariant:
    part = choice.chunk_bytes if choice.chunk_bytes is not None else choice.segment_bytes
    if part is not None and part >= size:
        part = None
    kind = (choice.algorithm, choice.library_algorithm, choice.radix)
    return AlgorithmVariant(kind, part, choice.depth if part is not None else None)


def variants_at(choices: Iterable[AlgorithmChoice], size: int) -> dict[AlgorithmVariant, list[AlgorithmChoice]]:
    """The variants at a size, each with the choices that are equivalent there."""
    found: dict[AlgorithmVariant, list[AlgorithmChoice]] = {}
    for choice in choices:
        found.setdefault(variant_of(choice, size), []).append(choice)
    return found


# Yields the next variant to measure, receives its seconds, and returns the finalists.
Race = Generator[AlgorithmVariant, float, list[AlgorithmVariant]]


@dataclass
class SizeState:
    """All variants at one size and their times so far, including earlier measurements."""

    size: int
    members: Mapping[AlgorithmVariant, list[AlgorithmChoice]]
    times: dict[AlgorithmVariant, list[float]] = field(default_factory=dict)

    @property
    def baseline(self) -> AlgorithmVariant:
        """The library with nothing set."""
        return variant_of(LIBRARY, self.size)

    def minimum(self, variant: AlgorithmVariant) -> float:
        return min(self.times.get(variant, ()), default=inf)

    @property
    def best(self) -> float:
        return min(map(min, self.times.values()), default=inf)

    @property
    def min_samples(self) -> int:
        return MIN_CHEAP_SAMPLES if self.best < CHEAP_SECONDS else MIN_SAMPLES

    def of_kind(self, kind: Kind) -> list[AlgorithmVariant]:
        return [variant for variant in self.members if variant.kind == kind]

    def kinds(self) -> list[Kind]:
        return list(dict.fromkeys(variant.kind for variant in self.members))

    def best_of_kind(self, kind: Kind) -> AlgorithmVariant | None:
        measured = [variant for variant in self.of_kind(kind) if variant in self.times]
        return min(measured, key=self.minimum, default=None)

    def ratio(self, variant: AlgorithmVariant) -> float:
        """Its time relative to the best variant; infinite if it was not measured."""
        return self.minimum(variant) / self.best if variant in self.times else inf

    def good_of_kind(self, kind: Kind) -> list[AlgorithmVariant]:
        """The variants whose neighbours are worth trying; none if the kind is poor."""
        best = self.best_of_kind(kind)
        if best is None or self.ratio(best) > POOR_RATIO:
            return []
        if self.best >= CHEAP_SECONDS:
            return [best]
        return [variant for variant in self.of_kind(kind) if self.minimum(variant) <= NEAR_RATIO * self.minimum(best)]

    def nearest(self, kind: Kind, part: int | None, depth: int | None) -> list[AlgorithmVariant]:
        """The variant of the kind with the nearest part, then the nearest depth; at most one."""
        found = self.of_kind(kind)
        return sorted(
            found, key=lambda variant: (log_distance(variant.part, part), log_distance(variant.depth, depth))
        )[:1]

    def neighbours(self, variant: AlgorithmVariant) -> list[AlgorithmVariant]:
        """The variants with the next larger and smaller parts, and those with other depths."""
        same_kind = self.of_kind(variant.kind)
        parts = sorted({one.part for one in same_kind}, key=lambda part: part or inf)
        at = parts.index(variant.part)
        beside = {parts[index] for index in (at - 1, at + 1) if 0 <= index < len(parts)}
        found = [one for part in beside for one in self.nearest(variant.kind, part, variant.depth) if one.part == part]
        return found + [one for one in same_kind if one.part == variant.part and one.depth != variant.depth]

    def time(self, variant: AlgorithmVariant) -> Time:
        return Time.of(self.times[variant])


def log_distance(one: int | None, other: int | None) -> float:
    """The logarithm of the ratio of two parts or depths.

    The whole message (None) is far from every part.
    """
    if one is None or other is None:
        return 0.0 if one is other else 1e3
    return abs(log(one / other))


@dataclass(frozen=True)
class EarlierSizes:
    """The results at smaller sizes: the best of each kind at the last one, and hopeless variants.

    `best` is sorted by time.
    """

    best: Mapping[Kind, AlgorithmVariant]
    hopeless: frozenset[AlgorithmVariant]


NO_EARLIER_SIZES = EarlierSizes({}, frozenset())


def earlier_sizes(states: list[SizeState]) -> EarlierSizes:
    """`states`: the sizes measured so far, ascending."""
    if not states:
        return NO_EARLIER_SIZES
    last = states[-1]
    best = [variant for kind in last.kinds() if (variant := last.best_of_kind(kind)) is not None]
    every = {variant for state in states for variant in state.times}
    return EarlierSizes(
        {variant.kind: variant for variant in sorted(best, key=last.minimum)},
        frozenset(variant for variant in every if is_hopeless(variant, states)),
    )


def is_hopeless(variant: AlgorithmVariant, states: list[SizeState]) -> bool:
    """Whether to skip a variant at the next size, by the last two sizes at which it was measured.

    A variant that was not measured at the last size is tried again while calls are cheap: at small
    sizes its ratio may be constant and improve later.
    """
    if variant not in states[-1].times and states[-1].best < CHEAP_SECONDS:
        return False
    ratios = [state.ratio(variant) for state in states if variant in state.times][-2:]
    return len(ratios) == 2 and min(ratios) > HOPELESS_RATIO and ratios[1] > IMPROVING_RATIO * ratios[0]


def race(state: SizeState, earlier: EarlierSizes, proposed: Mapping[Kind, int], over: Callable[[], bool]) -> Race:
    """Yields the variants to measure; returns the finalists, whose results should be checked.

    `proposed`: the cost model's part for a kind, in bytes. `over()`: whether the time limit for
    this size is reached; the baseline is measured in any case.
    """
    yield from sample(state, [state.baseline])
    pending = seeds(state, earlier, proposed)
    while pending and not over():
        yield from sample(state, pending, over)
        pending = [
            variant
            for kind in state.kinds()
            for good in state.good_of_kind(kind)
            for variant in state.neighbours(good)
            if variant not in state.times and variant not in earlier.hopeless
        ]
    remaining = finalists(state, earlier)
    round_number = 0
    while not over() and (variants := undecided(state, remaining)):
        # Each round starts with another variant, so that none always runs after the same one.
        first = round_number % len(variants)
        for variant in (*variants[first:], *variants[:first]):
            state.times[variant].append((yield variant))
        round_number += 1
        remaining = [
            variant for variant in remaining if variant == state.baseline or not is_beaten(state, variant, remaining)
        ]
    return remaining


def sample(
    state: SizeState, variants: Iterable[AlgorithmVariant], over: Callable[[], bool] = lambda: False
) -> Generator[AlgorithmVariant, float, None]:
    """Measures each variant until it has enough samples to be judged."""
    for variant in variants:
        while len(state.times.get(variant, ())) < samples_before_judging(state, variant):
            seconds = yield variant
            state.times.setdefault(variant, []).append(seconds)
        if over():
            return


def samples_before_judging(state: SizeState, variant: AlgorithmVariant) -> int:
    if variant not in state.times or state.ratio(variant) > FAR_RATIO:
        return 1
    return next((number for limit, number in SAMPLES_BEFORE_JUDGING if state.minimum(variant) < limit), 1)


def seeds(state: SizeState, earlier: EarlierSizes, proposed: Mapping[Kind, int]) -> list[AlgorithmVariant]:
    """Of each kind: the best at the last size, the model's proposal, a middle part, the whole
    message.

    The best of the last size comes first: once it is measured, slow variants get only one sample.
    """
    found: dict[AlgorithmVariant, None] = {}
    for kind in dict.fromkeys([*earlier.best, *state.kinds()]):
        parts: list[tuple[int | None, int | None]] = [(MIDDLE_PART_BYTES, None), (None, None)]
        if kind in proposed:
            parts.insert(0, (proposed[kind], None))
        if kind in earlier.best:
            parts.insert(0, (earlier.best[kind].part, earlier.best[kind].depth))
        for part, depth in parts:
            found |= dict.fromkeys(state.nearest(kind, part, depth))
    return [variant for variant in found if variant not in state.times and variant not in earlier.hopeless]


def finalists(state: SizeState, earlier: EarlierSizes) -> list[AlgorithmVariant]:
    """The variants that are measured until their times differ significantly.

    These are the baseline, the few best, and the best of the last size unless it is poor here.
    """
    margin = POOR_RATIO if state.best < CHEAP_SECONDS else CLOSE_RATIO
    good = sorted(
        (variant for variant in state.times if state.minimum(variant) <= margin * state.best), key=state.minimum
    )
    kept = [variant for variant in good if earlier.best.get(variant.kind) == variant][:1]
    return list(dict.fromkeys([state.baseline, *good[:MAX_FINALISTS], *kept]))


def is_beaten(state: SizeState, variant: AlgorithmVariant, remaining: list[AlgorithmVariant]) -> bool:
    """Whether it is slower than the best beyond both intervals and by more than MAX_LOSS_RATIO."""
    if len(state.times[variant]) < state.min_samples:
        return False
    time = state.time(variant)
    best = min((state.time(other) for other in remaining), key=lambda one: one.median)
    return time.low > best.high and time.median > MAX_LOSS_RATIO * best.median


def undecided(state: SizeState, remaining: list[AlgorithmVariant]) -> list[AlgorithmVariant]:
    """The finalists that need more samples.

    They have too few, or a wide interval that overlaps the interval of the best.
    """
    times = {variant: state.time(variant) for variant in remaining}
    best = min(remaining, key=lambda variant: times[variant].median)
    found = []
    for variant in remaining:
        samples = len(state.times[variant])
        rival = next((other for other in remaining if other != variant), variant) if variant == best else best
        precise = is_narrow(times[variant]) or (variant != rival and not times[variant].overlaps(times[rival]))
        most = min(MAX_SAMPLES, MAX_SAMPLING_SECONDS / times[variant].median)
        if samples < state.min_samples or (samples < most and not precise):
            found.append(variant)
    return found


def is_narrow(time: Time) -> bool:
    return time.low > 0 and sqrt(time.high / time.low) - 1 <= NARROW_RATIO


def exhaustive(state: SizeState, over: Callable[[], bool]) -> Race:
    """Measures all variants equally often, interleaved; slow ones get fewer samples.

    `over()` as in `race`: the baseline is measured in any case.
    """
    if state.baseline not in state.times:
        state.times[state.baseline] = [(yield state.baseline)]
    for number in range(EXHAUSTIVE_SAMPLES):
        for variant in state.members:
            times = state.times.get(variant, [])
            enough = len(times) > number or (number >= MIN_SAMPLES and sum(times) > MAX_SAMPLING_SECONDS)
            if not enough and not over():
                state.times.setdefault(variant, []).append((yield variant))
    return list(state.times)


def sizes_at_crossovers(states: list[SizeState]) -> list[int]:
    """Powers of two between neighbouring sizes whose best choices differ.

    They differ if neither is good enough at the other size: a rule ends between the two.
    """
    found = []
    for one, other in pairwise(states):
        if other.size >= 4 * one.size and not (
            is_good_enough(other, winner(one)) or is_good_enough(one, winner(other))
        ):
            found.append(1 << round(log(one.size * other.size, 2) / 2))
    return found


def winner(state: SizeState) -> AlgorithmChoice:
    return state.members[min(state.times, key=lambda variant: state.time(variant).median)][0]


def is_good_enough(state: SizeState, choice: AlgorithmChoice) -> bool:
    variant = variant_of(choice, state.size)
    best = min(state.time(other).median for other in state.times)
    return variant in state.times and state.time(variant).median <= MAX_LOSS_RATIO * best
