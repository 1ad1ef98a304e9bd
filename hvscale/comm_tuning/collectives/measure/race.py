"""Which choice is measured next at a size: a few of each kind, then the neighbours of what was good, then the good ones until they can be told apart.

Nothing here measures, and nothing here knows a library.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, log, sqrt

from hvscale.comm_tuning.collectives.decide.decide import LOSS
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, Choice, Time

NEAR = 1.1  # times the best of its kind: what is next to it is tried, too, where that is cheap
POOR = 1.5  # times the best: not measured again at this size
FAR = 3.0  # times the best at the first look: there is no second one
HOPELESS = 2.0  # times the best at two sizes, without growing better: not tried at the next
BETTER = 0.85  # of the ratio before it: that is growing better
CHEAP_SECONDS = 0.02
# Up to so many seconds of a call it is looked at so often before it is judged by the least: a first one may be twice as long as all others.
LOOKS = ((CHEAP_SECONDS, 3), (2.0, 2))
CLOSE = 1.2  # times the best: of what takes longer, no other is measured again
LEAST_SAMPLES, LEAST_CHEAP_SAMPLES, MOST_SAMPLES = 3, 5, 11
SAMPLING_SECONDS = 5.0  # of one way at one size at most, once it has the least samples
NARROW = 0.015  # half of an interval, as a ratio: well enough known
EXHAUSTIVE_SAMPLES = 5
RIVALS = 6  # so many are told apart, the best so far
MIDDLE = 32 << 10  # bytes of a part: below each library's eager limit

Kind = tuple[str, str | None, int | None]


@dataclass(frozen=True)
class Way:
    """What a choice is at one size: `part` and `depth` None where the whole message goes at once."""

    kind: Kind
    part: int | None
    depth: int | None


def way_of(choice: Choice, size: int) -> Way:
    part = choice.chunk_bytes if choice.chunk_bytes is not None else choice.segment_bytes
    if part is not None and part >= size:
        part = None
    kind = (choice.algorithm, choice.library_algorithm, choice.radix)
    return Way(kind, part, choice.depth if part is not None else None)


def ways(choices: Iterable[Choice], size: int) -> dict[Way, list[Choice]]:
    """The choices that are the same at this size."""
    found: dict[Way, list[Choice]] = {}
    for choice in choices:
        found.setdefault(way_of(choice, size), []).append(choice)
    return found


# What is measured next; sent back: its seconds.
Race = Generator[Way, float, list[Way]]


@dataclass
class Field:
    """All ways at a size, and what they have taken, the known ones from before."""

    size: int
    members: Mapping[Way, list[Choice]]
    times: dict[Way, list[float]] = field(default_factory=dict)

    @property
    def base(self) -> Way:
        """The library with nothing set, which all others are measured against."""
        return way_of(LIBRARY, self.size)

    def least(self, way: Way) -> float:
        return min(self.times.get(way, ()), default=inf)

    @property
    def best(self) -> float:
        return min(map(min, self.times.values()), default=inf)

    @property
    def least_samples(self) -> int:
        return LEAST_CHEAP_SAMPLES if self.best < CHEAP_SECONDS else LEAST_SAMPLES

    def of_kind(self, kind: Kind) -> list[Way]:
        return [way for way in self.members if way.kind == kind]

    def kinds(self) -> list[Kind]:
        return list(dict.fromkeys(way.kind for way in self.members))

    def best_of_kind(self, kind: Kind) -> Way | None:
        measured = [way for way in self.of_kind(kind) if way in self.times]
        return min(measured, key=self.least, default=None)

    def ratio(self, way: Way) -> float:
        """To the best of all; infinite where it was not measured."""
        return self.least(way) / self.best if way in self.times else inf

    def good_of_kind(self, kind: Kind) -> list[Way]:
        """What is worth trying its neighbours: the best, and what is near it where that is cheap; nothing of a kind that is poor."""
        best = self.best_of_kind(kind)
        if best is None or self.ratio(best) > POOR:
            return []
        if self.best >= CHEAP_SECONDS:
            return [best]
        return [way for way in self.of_kind(kind) if self.least(way) <= NEAR * self.least(best)]

    def nearest(self, kind: Kind, part: int | None, depth: int | None) -> list[Way]:
        """The one way of the kind whose part comes nearest; of several depths the nearest one, or the first."""
        found = self.of_kind(kind)
        return sorted(found, key=lambda way: (apart(way.part, part), apart(way.depth, depth)))[:1]

    def neighbours(self, way: Way) -> list[Way]:
        """With the next larger and smaller part, and the other depths."""
        kin = self.of_kind(way.kind)
        parts = sorted({one.part for one in kin}, key=lambda part: part or inf)
        at = parts.index(way.part)
        beside = {parts[place] for place in (at - 1, at + 1) if 0 <= place < len(parts)}
        found = [one for part in beside for one in self.nearest(way.kind, part, way.depth) if one.part == part]
        return found + [one for one in kin if one.part == way.part and one.depth != way.depth]

    def time(self, way: Way) -> Time:
        return Time.of(self.times[way])


def apart(one: int | None, other: int | None) -> float:
    """Of parts and depths, as the logarithm of their ratio; the whole message is far from each part."""
    if one is None or other is None:
        return 0.0 if one is other else 1e3
    return abs(log(one / other))


@dataclass(frozen=True)
class Before:
    """What the sizes before this one tell: the best way of each kind at the last one, the best first, and the ways that have no hope."""

    best: Mapping[Kind, Way]
    hopeless: frozenset[Way]


NOTHING_BEFORE = Before({}, frozenset())


def before(fields: list[Field]) -> Before:
    """By the sizes measured so far, ascending."""
    if not fields:
        return NOTHING_BEFORE
    last = fields[-1]
    best = [way for kind in last.kinds() if (way := last.best_of_kind(kind)) is not None]
    every = {way for of in fields for way in of.times}
    return Before(
        {way.kind: way for way in sorted(best, key=last.least)},
        frozenset(way for way in every if is_hopeless(way, fields)),
    )


def is_hopeless(way: Way, fields: list[Field]) -> bool:
    """By the last two sizes at which it was measured. What was left out at the last one is tried again while that is cheap: at small sizes a
    ratio may stand still, and grow better later."""
    if way not in fields[-1].times and fields[-1].best < CHEAP_SECONDS:
        return False
    ratios = [of.ratio(way) for of in fields if way in of.times][-2:]
    return len(ratios) == 2 and min(ratios) > HOPELESS and ratios[1] > BETTER * ratios[0]


def race(of: Field, earlier: Before, proposed: Mapping[Kind, int], over: Callable[[], bool]) -> Race:
    """Yields what is to be measured; at the end gives the ways that were told apart, whose results should be checked.

    `proposed`: a part of each kind, by the cost model. `over()`: whether the size has had its time; the library's own is looked at in any case.
    """
    yield from look(of, [of.base])
    todo = seeds(of, earlier, proposed)
    while todo and not over():
        yield from look(of, todo, over)
        todo = [
            way
            for kind in of.kinds()
            for good in of.good_of_kind(kind)
            for way in of.neighbours(good)
            if way not in of.times and way not in earlier.hopeless
        ]
    alive = rivals(of, earlier)
    turn = 0
    while not over() and (open_ := undecided(of, alive)):
        # Each round begins elsewhere, so that none always comes behind the same one.
        for way in (*open_[turn % len(open_) :], *open_[: turn % len(open_)]):
            of.times[way].append((yield way))
        turn += 1
        alive = [way for way in alive if way == of.base or not is_beaten(of, way, alive)]
    return alive


def look(of: Field, some: Iterable[Way], over: Callable[[], bool] = lambda: False) -> Generator[Way, float, None]:
    for way in some:
        while len(of.times.get(way, ())) < looks(of, way):
            seconds = yield way
            of.times.setdefault(way, []).append(seconds)
        if over():
            return


def looks(of: Field, way: Way) -> int:
    if way not in of.times or of.ratio(way) > FAR:
        return 1
    return next((number for limit, number in LOOKS if of.least(way) < limit), 1)


def seeds(of: Field, earlier: Before, proposed: Mapping[Kind, int]) -> list[Way]:
    """Of each kind: the one that was best before, what the model proposes, a middle part, and the whole message. What was best comes first: next to
    it others are soon seen to be far behind."""
    found: dict[Way, None] = {}
    for kind in dict.fromkeys([*earlier.best, *of.kinds()]):
        parts: list[tuple[int | None, int | None]] = [(MIDDLE, None), (None, None)]
        if kind in proposed:
            parts.insert(0, (proposed[kind], None))
        if kind in earlier.best:
            parts.insert(0, (earlier.best[kind].part, earlier.best[kind].depth))
        for part, depth in parts:
            found |= dict.fromkeys(of.nearest(kind, part, depth))
    return [way for way in found if way not in of.times and way not in earlier.hopeless]


def rivals(of: Field, earlier: Before) -> list[Way]:
    """Who is measured until they can be told apart: the base, the few best, and what was best before, if it is not poor here."""
    margin = POOR if of.best < CHEAP_SECONDS else CLOSE
    good = sorted((way for way in of.times if of.least(way) <= margin * of.best), key=of.least)
    kept = [way for way in good if earlier.best.get(way.kind) == way][:1]
    return list(dict.fromkeys([of.base, *good[:RIVALS], *kept]))


def is_beaten(of: Field, way: Way, alive: list[Way]) -> bool:
    """For sure, and by more than fewer rules are worth."""
    if len(of.times[way]) < of.least_samples:
        return False
    time = of.time(way)
    best = min((of.time(other) for other in alive), key=lambda one: one.median)
    return time.low > best.high and time.median > LOSS * best.median


def undecided(of: Field, alive: list[Way]) -> list[Way]:
    """Those of which more has to be known: too few samples, or neither narrow nor apart from the best."""
    times = {way: of.time(way) for way in alive}
    best = min(alive, key=lambda way: times[way].median)
    found = []
    for way in alive:
        samples = len(of.times[way])
        rival = next((other for other in alive if other != way), way) if way == best else best
        known = is_narrow(times[way]) or (way != rival and not times[way].overlaps(times[rival]))
        most = min(MOST_SAMPLES, SAMPLING_SECONDS / times[way].median)
        if samples < of.least_samples or (samples < most and not known):
            found.append(way)
    return found


def is_narrow(time: Time) -> bool:
    return time.low > 0 and sqrt(time.high / time.low) - 1 <= NARROW


def exhaustive(of: Field, over: Callable[[], bool]) -> Race:
    """All of them, equally often, in turns, but for those that take long."""
    for number in range(EXHAUSTIVE_SAMPLES):
        for way in of.members:
            times = of.times.get(way, [])
            enough = len(times) > number or (number >= LEAST_SAMPLES and sum(times) > SAMPLING_SECONDS)
            if not enough and not over():
                of.times.setdefault(way, []).append((yield way))
    return list(of.times)


def refined(fields: list[Field]) -> list[int]:
    """Powers of two between sizes of which neither's best will do at the other: there a rule begins."""
    found = []
    for one, other in pairwise(fields):
        if other.size >= 4 * one.size and not (will_do(other, winner(one)) or will_do(one, winner(other))):
            found.append(1 << round(log(one.size * other.size, 2) / 2))
    return found


def winner(of: Field) -> Choice:
    return of.members[min(of.times, key=lambda way: of.time(way).median)][0]


def will_do(of: Field, choice: Choice) -> bool:
    way = way_of(choice, of.size)
    best = min(of.time(other).median for other in of.times)
    return way in of.times and of.time(way).median <= LOSS * best
