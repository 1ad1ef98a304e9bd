"""The cost of all-reduces and agreements, fitted to measured ones and extrapolated in np.

An all-reduce takes

    norm((bytes - burst) / rate, start * messages * waiting + copy * bytes * crowding)

over links, and within a node

    start * (messages + 2 * large) * waiting
    + copy * (bytes * outside_caches * crowding ** (0.70 * exponent) - first * (crowding - 1))

where messages and bytes are those that a rank sends one after the other in the algorithm (Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005), large
are those messages that sender and receiver agree on before they are copied, first are the bytes of
the first one, crowding = max(1, ranks per core), and waiting = crowding ** exponent. The cores
share out the work of copying; a message waits longer than that, because the ranks that poll
meanwhile take their turns on the cores. In a ring over links it waits less: ranks that get a core
one after the other pass it on within one turn. An all-reduce counts from the moment when its last
rank begins. Before it, the others on its core have copied their first message. Over the sockets of
one node, copies wait for the whole exponent. What a core's ranks copy in turn leaves its caches
where they are many or a single send is large, and copying then takes longer. The work of the cores
and the link's time overlap in part: norm(a, b) = (a ** 2 + b ** 2) ** (1 / 2) lies between the
longer of them and their sum. Links are limited by a token bucket, which lets pass at once what it
could have sent meanwhile. While few ranks wait for such a link, their copies cannot be seen: runs
between the same nodes without a limit show them. What the formula leaves is kept as a factor by the
size of the all-reduce.

Horovod copies tensors into a fusion buffer before an all-reduce and out of it afterwards, and
divides the sum by np. The ranks of a core do each of these one after the other. A measured
all-reduce ends when its last rank is through, so that it holds what the others did after it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from hvscale.core.errors import RequestError
from hvscale.launch.placements._link_shaping import burst_bytes
from hvscale.prediction.model.costs import Burst, seconds_to_enqueue
from hvscale.prediction.model.samples import Samples

Floats = NDArray[np.float64]
Factors = tuple[tuple[float, float], ...]
INLIER_ERROR = 0.2  # of a time's logarithm; larger errors get less weight
COPY_BYTES_PER_SECOND = 8e9  # of one core, where no copy was measured
LEAST_COPIED = 1 << 18  # smaller messages do not show what a byte takes to copy
MOST_COPIES = 500  # measured ones; the fit compares all pairs
# These two were chosen like the priors below.
SENT_AT_ONCE = 2 << 20  # bytes of a rank's first send, at most, before another rank gets the core
# A first send takes so many times as long as the formula's copies of as many bytes.
FIRST_SEND = 1.5
# Within a node, sender and receiver agree on a message of more bytes before it is copied (Open
# MPI's btl_sm_eager_limit), which takes so many more starts. Chosen like the priors.
EAGER_BYTES, RENDEZVOUS = 1 << 12, 2.0
# Dividing a sum by np takes so much of the time that copying it into the fusion buffer takes: after
# a VGG-16 message of 411 MB, 32 ms passed until the next one, or 0.078 ns a byte, where a byte took
# 0.09 to 0.11 ns to copy.
AVERAGING = 0.75
LEAST_SHARE = 0.3  # of a measured message that is not what other ranks do
FACTOR_LIMITS = 0.5, 2.0  # of what the formula leaves at a size
# Of the formula's first three parameters, where the messages do not determine them: a prior.
MAX_DEVIATION = 0.3, 0.3, 0.1
# So weak that it matters only where no message shows the link's rate.
LINK_DEVIATION = 100
# Messages of a step are slow or fast together: a run of 20 steps counts as 20 independent ones.
INDEPENDENT = 20
EXPONENT_LIMIT = 2.5
# Of the logarithm of a message's time, if it is at least FAR_LARGER times as large as any measured
# one (root mean square of ten fits to the smaller messages of runs, benchmarks/RESULTS.md).
LARGER_ERROR = 0.25
FAR_LARGER = 4
HEADERS = 1514 / 1448  # bytes of an Ethernet frame over those that TCP carries in it
ALIKE = 1.005  # errors of two algorithms' fits that do not distinguish them
# The error of an algorithm that libraries use for short messages only counts as so much more.
SHORT_ONLY = {"recursive doubling": 1.25}
FEWEST_RANKS = 3  # that send to one rank and receive from another, as more ranks do
REFITS = 2  # of the formula, without what is particular to a size
BIN = 2**0.5  # width of a bin of sizes, as a factor
# Messages that decide about a size: the bins around it count as well until they hold as many, but
# none that is farther than FARTHEST_BIN.
FEWEST_MESSAGES = 40
FARTHEST_BIN = 4
# Of agreements, longer ones count as this quantile: few ranks show rare ones by chance.
LONGEST_AGREEMENT = 0.9


class Prior(NamedTuple):
    """What is expected of the parameters, where few ranks per core do not show it.

    `messages`, `agreements`: the exponents of crowding, with their standard deviation;
    `within_a_node`, `over_sockets`: as in Formula. `start`, `copy`: the logarithms of the seconds
    to start a message and to copy a byte, with their standard deviations. That of copying is large
    without a known link, whose time then counts as copying. All were chosen for 4 to 32 ranks on
    two cores (benchmarks/prediction_accuracy.py).
    """

    messages: float
    agreements: float
    deviation: float = 0.25
    within_a_node: bool = False
    over_sockets: bool = False
    start: float = -9.0
    start_deviation: float = np.inf
    copy: float = -20.5  # 1.25 ns
    copy_deviation: float = 2.0


ON_LIMITED_LINKS, ON_LINKS = Prior(1.75, 1.5, copy=-20.8, copy_deviation=0.5), Prior(1.75, 1.5)
WITHIN_A_NODE = Prior(1.4, 1.4, within_a_node=True)
# Ranks that get a core one after the other have turns that are all the same, but more of them begin
# an agreement at more different moments. Chosen like the priors.
ROUND_ROBIN_EXPONENT, ROUND_ROBIN_AGREEMENTS, ROUND_ROBIN_DEVIATION = 1.0, 1.4, 0.06
# Of a core's second-level cache and of its share of the third, where the runs do not tell: those of
# an AMD EPYC with two cores.
CACHE_BYTES = 1 << 20, 1 << 24
# A copy outside the caches takes so many times as long as one within them: the logarithm, with its
# standard deviation. Of four machines with two cores, 3 fitted one, and the others' steps were
# predicted well without it.
OUTSIDE_CACHES, OUTSIDE_CACHES_DEVIATION = np.log(1.5), 0.5
NORM = 2.0  # its p; chosen like the priors
# How much of the exponent of crowding a message waits over links with `passes_on`. Chosen like the
# priors. Within a node it waits for all of it.
WAITING_PASSING_ON = 0.75
# As much of it copies within a node wait. The fewer ranks share a core, the more often it is idle
# while they wait for each other. Chosen with ranks that got a core one after the other: 36 settings
# of Open MPI and MPICH in two or three starts. Over the sockets of one node, copies wait for all of
# it (benchmarks/crowded_cores.py).
COPYING = 0.70


@dataclass(frozen=True)
class SentPerRank:
    """What a rank sends one after the other: how many messages of which share of the result.

    `passes_on`: whether ranks receive one part while they send another.
    """

    parts: tuple[tuple[float, int], ...]
    """Bytes of a message per byte of the result, and how many of them; the first one sent first."""
    passes_on: bool = False

    @property
    def messages(self) -> int:
        return sum(count for _, count in self.parts)

    @property
    def bytes(self) -> float:
        return sum(share * count for share, count in self.parts)

    @property
    def first(self) -> float:
        return self.parts[0][0]

    def larger_than(self, limit: float, sizes: Floats) -> Floats:
        """How many messages of an all-reduce of so many bytes are larger than `limit` bytes."""
        found = np.zeros_like(sizes)
        for share, count in self.parts:
            found += np.where(share * sizes > limit, count, 0)
        return found


def ring(np_: int) -> SentPerRank:
    return SentPerRank(((1 / np_, 2 * (np_ - 1)),), passes_on=True)


def halving_and_doubling(np_: int) -> SentPerRank:
    rounds, outside = rounds_by_halves(np_)
    return SentPerRank((*((2.0**-number, 2) for number in range(1, rounds + 1)), *[(1.0, 2)] * outside))


def recursive_doubling(np_: int) -> SentPerRank:
    rounds, outside = rounds_by_halves(np_)
    return SentPerRank(((1.0, rounds + 2 * outside),))


def rounds_by_halves(np_: int) -> tuple[int, bool]:
    """The rounds among the largest power of 2 of ranks, and whether there are ranks outside it.

    Those send all bytes to a rank inside before the first round, and get the result after the last.
    """
    rounds = floor(log2(np_))
    return rounds, 2**rounds < np_


# Where several fit alike, the first is taken: libraries choose it for the messages that matter.
ALGORITHMS: Mapping[str, Callable[[int], SentPerRank]] = {
    "halving and doubling": halving_and_doubling,
    "ring": ring,
    "recursive doubling": recursive_doubling,
}


def share_outside(sizes: Floats, cache_bytes: tuple[int, int]) -> Floats:
    """How far the bytes that a core's ranks copy in turn are outside its caches, from 0 to 1."""
    first, last = np.log(cache_bytes)  # a core's share of the third may be the smaller one
    share: Floats = np.clip((np.log(np.maximum(sizes, 1)) - first) / max(last - first, 1e-9), 0, 1)
    return share


@dataclass(frozen=True)
class Formula:
    """The parameters of the formula. `seconds_per_byte`: of the link, 0 within a node.

    `within_a_node`: copies wait for COPYING of the exponent of crowding, and caches count.
    `over_sockets`: within a node, copies wait for the whole exponent.
    """

    algorithm: str
    start_seconds: Floats | float
    copy_seconds_per_byte: Floats | float
    seconds_per_byte: Floats | float
    crowding_exponent: Floats | float
    within_a_node: bool = False
    outside_caches: Floats | float = 1.0
    """How many times as long a copy within a node takes outside the caches."""
    cache_bytes: tuple[int, int] = CACHE_BYTES
    over_sockets: bool = False

    def seconds(self, sizes: Floats, np_: int, ranks_per_core: float, burst: Floats | float = 0.0) -> Floats:
        """All-reduces of so many bytes; `burst`: bytes that the link lets pass at once."""
        path = ALGORITHMS[self.algorithm](np_)
        crowding = max(1.0, ranks_per_core)
        share = WAITING_PASSING_ON if path.passes_on and not self.within_a_node else 1.0
        starts = path.messages + (RENDEZVOUS * path.larger_than(EAGER_BYTES, sizes) if self.in_shared_memory else 0.0)
        start = self.start_seconds * starts * np.power(crowding, share * self.crowding_exponent)
        copy = self.copy_seconds_per_byte * path.bytes * sizes
        if self.within_a_node:
            at_once = 2 * path.first * sizes  # sent and received
            outside = self.outside_caches ** share_outside(crowding * at_once, self.cache_bytes)
            waiting = 1.0 if self.over_sockets else COPYING
            copy = copy * outside * np.power(crowding, waiting * self.crowding_exponent)
            if self.in_shared_memory:
                copy = np.maximum(copy - self.begun_seconds(sizes, np_, crowding), 0)
        else:
            copy = copy * crowding
        on_link = np.maximum(path.bytes * sizes - burst, 0) * self.seconds_per_byte
        found: Floats = (on_link**NORM + (start + copy) ** NORM) ** (1 / NORM)
        return found

    @property
    def in_shared_memory(self) -> bool:
        return self.within_a_node and not self.over_sockets

    def begun_seconds(self, sizes: Floats, np_: int, crowding: float) -> Floats:
        """What the others on a core do of an all-reduce before the last of them begins it.

        Each of them goes as far as it can before the next one gets the core. In shared memory the
        receiver copies (process_vm_readv): all of the first message. Otherwise the sender does.
        """
        first = ALGORITHMS[self.algorithm](np_).first * sizes
        if not self.in_shared_memory:
            first = FIRST_SEND * np.minimum(first, SENT_AT_ONCE)
        begun: Floats = (crowding - 1) * self.copy_seconds_per_byte * first
        return begun


@dataclass(frozen=True)
class MeasuredCosts:
    """Satisfies `Costs`. `cores`: that all ranks share; None: each rank has its own core."""

    formula: Formula
    covariance: Floats
    """(5, 5): of the formula's parameters, see `_formula`."""
    agreement_start_seconds: float
    agreement_exponent: float
    factors: Factors
    """Bytes of an all-reduce, and what the formula is multiplied by there; ascending."""
    burst: Burst | None
    largest_np: int
    largest_bytes: float
    """Of the measured all-reduces; the cost of larger ones is extrapolated."""
    description: str
    cores: int | None
    handling: "Handling"
    agrees_in_ring: bool = False
    blocking: bool = True
    error_of_larger: Floats | None = None
    """Of the logarithm of their time, drawn for each job; None: none."""

    def with_link(self, bytes_per_second: float) -> "MeasuredCosts":
        """The same on a link of another rate, with the same share of it that arrives as data."""
        if self.burst is None:
            raise RequestError("the runs were measured without a limited link")
        scale = self.burst.bytes_per_second / bytes_per_second
        formula = replace(self.formula, seconds_per_byte=self.formula.seconds_per_byte * scale)
        return replace(self, formula=formula, burst=Burst(burst_bytes(bytes_per_second), bytes_per_second))

    def perturbed(self, chains: int, seed: int = 3) -> "MeasuredCosts":
        """Parameters drawn from the fit's posterior: (chains,) each."""
        generator = np.random.default_rng(seed)
        drawn = generator.multivariate_normal(np.zeros(5), self.covariance, size=chains).T
        old = self.formula
        formula = replace(
            old,
            start_seconds=old.start_seconds * np.exp(drawn[0]),
            copy_seconds_per_byte=old.copy_seconds_per_byte * np.exp(drawn[1]),
            seconds_per_byte=old.seconds_per_byte * np.maximum(1 + drawn[2], 0.5),
            crowding_exponent=np.maximum(old.crowding_exponent + drawn[3], 0),
            outside_caches=np.maximum(old.outside_caches * np.exp(drawn[4]), 1),
        )
        return replace(self, formula=formula, error_of_larger=LARGER_ERROR * generator.standard_normal(chains))

    def ranks_per_core(self, np_: int) -> float:
        return 0.0 if self.cores is None else np_ / self.cores

    def crowding(self, np_: int) -> float:
        return max(1.0, self.ranks_per_core(np_))

    def message_seconds(self, bytes: Floats, np: int, burst: Floats | float = 0.0) -> Floats:
        """All-reduces, with what the ranks of a core do in turn before and after each."""
        crowding = self.crowding(np)
        before = crowding * self.handling.seconds + self.formula.begun_seconds(bytes, np, crowding)
        after = self.handling.seconds + crowding * AVERAGING * self.handling.seconds_per_byte * bytes
        return before + self.wire_seconds(bytes, np, burst) + after

    def wire_seconds(self, bytes: Floats, np: int, burst: Floats | float = 0.0) -> Floats:
        """The all-reduces alone, from the moment when the last rank begins each."""
        seconds = self.formula.seconds(bytes, np, self.ranks_per_core(np), burst)
        return seconds * factor(self.factors, bytes) * self._factor_of_larger(bytes)

    def before_seconds(self, bytes: Floats, np: int) -> Floats:
        """From the agreement to the moment when the last rank begins a fused message."""
        handling = self.handling.seconds + self.handling.seconds_per_byte * bytes
        return self.crowding(np) * handling + self.formula.begun_seconds(bytes, np, self.crowding(np))

    def _factor_of_larger(self, sizes: Floats) -> Floats | float:
        """As drawn, for messages larger than the measured ones; it grows with their size."""
        if self.error_of_larger is None:
            return 1.0
        reached = np.log(np.maximum(sizes, 1) / self.largest_bytes) / np.log(FAR_LARGER)
        found: Floats = np.exp(self.error_of_larger * np.clip(reached, 0, 1))
        return found

    def sent_bytes(self, bytes: Floats, np: int) -> Floats:
        return bytes * ALGORITHMS[self.formula.algorithm](np).bytes

    def agreement_seconds(self, np: int) -> float:
        waiting: float = self.crowding(np) ** self.agreement_exponent
        return self.agreement_start_seconds * agreement_rounds(np, self.agrees_in_ring) * waiting

    def enqueue_seconds(self, np: int) -> float:
        return seconds_to_enqueue(self.crowding(np)) if self.formula.within_a_node and self.blocking else 0.0

    def copy_seconds(self, bytes: Floats, np: int) -> Floats:
        """A core's ranks copy into the fusion buffer and out of it one after the other."""
        return 2 * self.crowding(np) * self.handling.seconds_per_byte * bytes


def fit_costs(
    runs: Sequence[Samples], cores: int | None, algorithm: str | None = None, unlimited: Sequence[Samples] = ()
) -> MeasuredCosts:
    """Fit the costs to profiled runs of one library on one kind of link.

    `algorithm`: one of ALGORITHMS; None: the one that the runs asked for, or that fits best.
    `unlimited`: runs between nodes on the same machine without a limited link, which show what
    copies cost. Raises RequestError when the runs hold too few messages, or differ in library or
    link.
    """
    within_a_node = all(run.nodes == 1 for run in runs)
    messages = [run for run in runs if len(run.bytes)]
    if not messages:
        raise RequestError(
            "no run contains measured all-reduces: profile the job or its replay on two or more ranks, "
            "such as `hvscale profile -np 4 -- hvscale replay RUN`, and add that run"
        )
    for what, values in (
        ("libraries", {run.library for run in messages}),
        ("links", {run.bytes_per_second for run in messages}),
        ("algorithms", {run.algorithm for run in messages}),
    ):
        if len(values) > 1:
            raise RequestError(
                f"the runs were measured with different {what} ({', '.join(map(str, values))}): predict from runs of one"
            )
    messages = [run for run in messages if is_like_more_ranks(run)] or messages
    as_measured = messages
    rate = messages[0].bytes_per_second
    burst = Burst(burst_bytes(rate), rate) if rate is not None else None
    prior = ON_LIMITED_LINKS if burst else WITHIN_A_NODE if within_a_node else ON_LINKS
    prior = prior._replace(over_sockets=all(run.over_sockets for run in messages))
    if all(run.round_robin for run in messages):
        prior = prior._replace(
            messages=ROUND_ROBIN_EXPONENT, agreements=ROUND_ROBIN_AGREEMENTS, deviation=ROUND_ROBIN_DEVIATION
        )
    if agrees_in_ring := all(run.agrees_in_ring for run in messages):
        prior = prior._replace(agreements=0.0)  # no other rank waits for a turn meanwhile
    asked = [name for name in ALGORITHMS if messages[0].algorithm in ALGORITHM_NAMES[name]]
    names = [algorithm] if algorithm else asked or list(ALGORITHMS)
    if len({run.np for run in messages}) == 1:
        names = names[:1]  # one np does not distinguish algorithms
    unlimited = [run for run in unlimited if len(run.bytes) and is_like_more_ranks(run)]
    priors = {name: _with_unlimited(prior, name, unlimited) for name in names}
    fitted = [_fit(name, messages, burst, (), priors[name]) for name in names]
    over_nccl = messages[0].over_nccl
    least = min(fit.error for fit in fitted)
    formula, covariance, _ = next(fit for fit in fitted if fit.error <= least * ALIKE)
    for _ in range(REFITS):
        handling = ON_GPU if over_nccl else _fit_handling(as_measured, formula)
        messages = [without_others(run, handling) for run in as_measured]
        factors = _factors(formula, messages, burst, typical=True)
        formula, covariance, _ = _fit(formula.algorithm, messages, burst, factors, priors[formula.algorithm])
    start, exponent = _fit_agreements(runs, prior)
    return MeasuredCosts(
        formula=formula,
        covariance=covariance,
        agreement_start_seconds=start,
        agreement_exponent=exponent,
        agrees_in_ring=agrees_in_ring,
        factors=_factors(formula, messages, burst),
        burst=burst,
        largest_np=max(run.np for run in messages),
        largest_bytes=max(float(run.bytes.max()) for run in messages),
        handling=handling,
        blocking=not over_nccl,
        description=_described(messages, unlimited),
        cores=cores,
    )


def without_others(run: Samples, handling: "Handling") -> Samples:
    """Without what the other ranks of a core do meanwhile: enqueue tensors, and what follows a
    message while the last of them is still in it.
    """
    if run.from_benchmark:
        return run
    copied = np.ones(len(run.bytes), np.bool_) if run.fused is None else run.fused
    others = (max(1.0, run.ranks_per_core) - 1) * handling.seconds_per_byte * run.bytes * (AVERAGING + copied)
    seconds = (1 - run.enqueueing) * run.seconds - others
    return replace(run, seconds=np.maximum(seconds, LEAST_SHARE * run.seconds))


def _described(messages: Sequence[Samples], unlimited: Sequence[Samples]) -> str:
    """Where costs were measured."""
    found, copies = (", ".join(map(str, sorted({run.np for run in runs}))) for runs in (messages, unlimited))
    return f"measured on np {found}" + (f", copies on np {copies} without a limited link" if copies else "")


def _with_unlimited(prior: Prior, algorithm: str, unlimited: Sequence[Samples]) -> Prior:
    """The prior with what messages and copies cost in an algorithm without a limited link."""
    if not unlimited:
        return prior
    any_copies = prior._replace(copy=ON_LINKS.copy, copy_deviation=ON_LINKS.copy_deviation)
    fitted = _fit(algorithm, unlimited, None, (), any_copies)
    found = fitted.formula
    start, copy = float(np.log(found.start_seconds)), float(np.log(found.copy_seconds_per_byte))
    start_deviation, copy_deviation = np.sqrt(np.diag(fitted.covariance)[:2]).tolist()
    return prior._replace(start=start, start_deviation=start_deviation, copy=copy, copy_deviation=copy_deviation)


def at_np(costs: MeasuredCosts, runs: Sequence[Samples], np_: int) -> MeasuredCosts:
    """The costs on `np_` ranks, with what messages took in runs there that do not show more ranks.

    `runs`: those that `costs` were fitted to. The same costs if none of them had as many ranks and
    as many on a core, or if they are like more ranks.
    """
    there = [run for run in runs if run.np == np_ and len(run.bytes) and not is_like_more_ranks(run)]
    there = [run for run in there if max(1.0, run.ranks_per_core) == costs.crowding(np_)]
    if not there:
        return costs
    rate = there[0].bytes_per_second
    there = [without_others(run, costs.handling) for run in there]
    as_measured = costs if rate is None else costs.with_link(rate)
    return replace(
        costs,
        factors=_factors(as_measured.formula, there, as_measured.burst),
        largest_bytes=max(costs.largest_bytes, *(float(run.bytes.max()) for run in there)),
    )


def is_like_more_ranks(run: Samples) -> bool:
    """Whether more ranks wait for each other as this run's do.

    Two ranks send each other everything, and a core with one rank more than another makes all wait.
    """
    return run.np >= FEWEST_RANKS and (run.ranks_per_core <= 1 or run.ranks_per_core.is_integer())


# The libraries' own names for the algorithms, as their knobs take them.
ALGORITHM_NAMES: Mapping[str, tuple[str, ...]] = {
    "ring": ("ring", "segmented_ring", "4", "5"),
    "halving and doubling": ("rabenseifner", "reduce_scatter_allgather", "6"),
    "recursive doubling": ("recursive_doubling", "3"),
}


def burst_left(run: Samples, burst: Burst | None) -> Floats | float:
    """The bytes that the link let pass at once, for each message."""
    if burst is None:
        return 0.0
    return np.minimum(run.idle_seconds * burst.bytes_per_second, burst.bytes)


class FittedFormula(NamedTuple):
    """A fitted formula, the covariance of its parameters, and its error by time."""

    formula: Formula
    covariance: Floats
    error: float


def _formula(
    algorithm: str, parameters: Floats, seconds_per_byte: float, prior: Prior, cache_bytes: tuple[int, int]
) -> Formula:
    """`parameters`: ln start, ln copy, share of the link's rate, exponent of crowding, ln outside
    the caches.
    """
    start, copy, outside = np.exp(parameters[[0, 1, 4]]).tolist()
    share, exponent = parameters[2:4].tolist()
    return Formula(
        algorithm,
        start,
        copy,
        seconds_per_byte * share,
        exponent,
        prior.within_a_node,
        outside,
        cache_bytes,
        prior.over_sockets,
    )


def _fit(algorithm: str, runs: Sequence[Samples], burst: Burst | None, factors: Factors, prior: Prior) -> FittedFormula:
    """Fit the formula of an algorithm by its errors' logarithms; each run has the same weight."""
    weights = [1 / np.sqrt(len(run.bytes)) for run in runs]
    rate = 1 / burst.bytes_per_second if burst else 0.0
    left = [burst_left(run, burst) for run in runs]
    logs = [np.log(run.seconds) for run in runs]
    if factors:
        logs = [log - np.log(factor(factors, run.bytes)) for log, run in zip(logs, runs, strict=True)]

    cache_bytes = next((run.cache_bytes for run in runs if run.cache_bytes is not None), CACHE_BYTES)

    # The prior counts as much as one run.
    weight_of_prior = np.full(max(len(run.bytes) for run in runs), min(weights) * INLIER_ERROR)

    priors = (  # of a parameter: its mean and deviation
        (0, prior.start, prior.start_deviation),
        (1, prior.copy, prior.copy_deviation),
        (2, HEADERS, LINK_DEVIATION),
        (3, prior.messages, prior.deviation),
        (4, OUTSIDE_CACHES, OUTSIDE_CACHES_DEVIATION),
    )

    def errors(parameters: Floats) -> Floats:
        formula = _formula(algorithm, parameters, rate, prior, cache_bytes)
        return np.concatenate(
            [
                *(weight_of_prior * (parameters[number] - mean) / deviation for number, mean, deviation in priors),
                *(
                    (np.log(formula.seconds(run.bytes, run.np, run.ranks_per_core, free)) - log) * weight
                    for run, free, log, weight in zip(runs, left, logs, weights, strict=True)
                ),
            ]
        )

    limits = ([-18, -30, 1.0, 0.0, 0.0], [0, -12, 2.0, EXPONENT_LIMIT, 2.0])
    first = np.array([prior.start, prior.copy, HEADERS, prior.messages, OUTSIDE_CACHES])
    best = optimize.least_squares(errors, first, bounds=limits, loss="soft_l1", f_scale=INLIER_ERROR * min(weights))
    data = slice(len(priors) * len(weight_of_prior), None)
    start, copy, share = MAX_DEVIATION
    max_deviation = min(start, prior.start_deviation), min(copy, prior.copy_deviation), share
    variance = float((best.fun[data] ** 2).sum()) / len(runs) / INDEPENDENT
    information = best.jac[data].T @ best.jac[data] / max(variance, 1e-12) + np.diag(
        1 / np.array([*max_deviation, prior.deviation, OUTSIDE_CACHES_DEVIATION]) ** 2
    )
    formula = _formula(algorithm, best.x, rate, prior, cache_bytes)
    # The messages that take the time distinguish algorithms: short ones may use another.
    error = 0.0
    for run, free, log in zip(runs, left, logs, strict=True):
        difference = (np.log(formula.seconds(run.bytes, run.np, run.ranks_per_core, free)) - log) / INLIER_ERROR
        error += float(np.average(np.sqrt(1 + difference**2) - 1, weights=run.seconds))
    return FittedFormula(formula, np.linalg.pinv(information), error * SHORT_ONLY.get(algorithm, 1.0))


class Handling(NamedTuple):
    """What Horovod does before a message: `seconds`, and for a fused one its copies.

    The ranks of a core do it one after the other, and a message begins when all of them have. Each
    rank is assumed to do the same again after it. To average, it takes AVERAGING of the seconds for
    each byte of any message.
    """

    seconds: float
    seconds_per_byte: float


# A V100's memory moves 900 GB/s (NVIDIA's datasheet), and a copy reads and writes. Later GPUs are
# faster, and their copies take less of a step still.
ON_GPU = Handling(0.0, 1 / 450e9)


def _fit_handling(runs: Sequence[Samples], formula: Formula) -> Handling:
    """Fit a line to the times of copies, by medians of pairs (Theil and Sen).

    Of several runs, the medians of their lines: memory may be slow in one of them.
    """
    lines = []
    for run in runs:
        sizes, seconds = _copies_of_a_rank(run, formula)
        if len(np.unique(sizes)) < 3 or sizes.max() < LEAST_COPIED:
            continue
        chosen = np.random.default_rng(0).permutation(len(sizes))[:MOST_COPIES]
        x, y = sizes[chosen], seconds[chosen]
        first, second = np.nonzero(x[:, None] > x)
        slope = max(0.0, float(np.median((y[first] - y[second]) / (x[first] - x[second]))))
        lines.append((max(0.0, float(np.median(y - slope * x))), slope))
    return Handling(*np.median(lines, axis=0).tolist()) if lines else Handling(0.0, 1 / COPY_BYTES_PER_SECOND)


def _copies_of_a_rank(run: Samples, formula: Formula) -> tuple[Floats, Floats]:
    """Bytes of fused messages, and a rank's seconds before each or to copy it; empty if unknown."""
    if run.before_seconds is None:
        return run.copies or (np.empty(0), np.empty(0))
    copied = np.arange(len(run.bytes)) if run.fused is None else np.flatnonzero(run.fused)
    sizes, crowding = run.bytes[copied], max(1.0, run.ranks_per_core)
    return sizes, (run.before_seconds[copied] - formula.begun_seconds(sizes, run.np, crowding)) / crowding


def _fit_agreements(runs: Iterable[Samples], prior: Prior) -> tuple[float, float]:
    """Seconds of one round without crowding, and the exponent of crowding."""
    known = [run for run in runs if len(run.agreements)]
    if not known:
        return 0.0, 0.0
    # A benchmark's ranks never sleep between its calls: Horovod's own agreements take longer.
    known = [run for run in known if not run.from_benchmark] or known
    known = [run for run in known if is_like_more_ranks(run)] or known
    crowding = np.log([max(1.0, run.ranks_per_core) for run in known])
    rounds = [agreement_rounds(run.np, run.agrees_in_ring) for run in known]
    each = np.log([_usual_mean(run.agreements) for run in known]) - np.log(rounds)
    # A line with a prior for its slope, as in `_fit`.
    spread, weight = crowding - crowding.mean(), (INLIER_ERROR / prior.deviation) ** 2
    slope = float((spread @ each + weight * prior.agreements) / (spread @ spread + weight))
    exponent = min(max(slope, 0.0), EXPONENT_LIMIT)
    return float(np.exp((each - exponent * crowding).mean())), exponent


def agreement_rounds(np_: int, in_ring: bool) -> int:
    """The messages of an agreement that follow each other."""
    return ring(np_).messages if in_ring else ceil(log2(np_))


def _usual_mean(seconds: Floats) -> float:
    """The mean, where the longest agreements count as LONGEST_AGREEMENT."""
    return float(np.minimum(seconds, np.quantile(seconds, LONGEST_AGREEMENT)).mean())


def factor(factors: Factors, sizes: Floats) -> Floats:
    """What the formula is multiplied by, interpolated over the logarithm of the bytes."""
    edges, values = np.array(factors).T
    found: Floats = np.interp(np.log(np.maximum(sizes, 1)), np.log(edges), values)
    return found


def _factors(formula: Formula, runs: Sequence[Samples], burst: Burst | None, typical: bool = False) -> Factors:
    """By the size of the all-reduce, the measured seconds over the formula's.

    A library changes its protocol with the size, and a link loses packets of large messages,
    whatever the number of ranks. One slow message says little: where fewer than FEWEST_MESSAGES
    have a size, those of a quarter to four times the size count as well. `typical`: the median of
    the messages, as `_fit` sees them: with their mean, a few slow ones would lower the formula at
    each refit. Otherwise of their sums.
    """
    measured: dict[int, list[Floats]] = {}
    expected: dict[int, list[Floats]] = {}
    for run in runs:
        seconds = formula.seconds(run.bytes, run.np, run.ranks_per_core, burst_left(run, burst))
        bins = np.round(np.log(np.maximum(run.bytes, 1)) / np.log(BIN)).astype(int)
        for one in np.unique(bins).tolist():
            measured.setdefault(one, []).append(run.seconds[bins == one])
            expected.setdefault(one, []).append(seconds[bins == one])

    counts = {one: sum(map(len, seconds)) for one, seconds in measured.items()}

    def ratio(one: int) -> float:
        pooled = _around(one, counts)
        of_bin = np.concatenate([seconds for other in pooled for seconds in measured[other]])
        by_formula = np.concatenate([seconds for other in pooled for seconds in expected[other]])
        return float(np.median(of_bin / by_formula) if typical else of_bin.sum() / by_formula.sum())

    return tuple((BIN**one, float(np.clip(ratio(one), *FACTOR_LIMITS))) for one in sorted(measured))


def _around(one: int, counts: Mapping[int, int]) -> list[int]:
    """The bins that decide about a bin, of those that hold so many messages."""
    near = [one]
    for reach in range(1, FARTHEST_BIN + 1):
        if sum(counts[other] for other in near) >= FEWEST_MESSAGES:
            break
        near = [other for other in counts if abs(other - one) <= reach]
    return near
