"""Horovod's background loop, for many independent jobs at once.

A cycle begins `cycle_time` after the one before, or when its messages are through. The ranks agree
on the tensors that all of them have enqueued, fuse these greedily in the order of the first step,
and all-reduce one fused message after the other (horovod/common: operations.cc RunLoopOnce,
response_cache.cc, controller.cc FuseResponses; release 0.28.1). MPI and Gloo block the loop
meanwhile, so that gradients pile up and the next message grows. NCCL's messages are ordered by a
stream, which also waits for the GPU to compute them, and the loop goes on (nccl_operations.cc
NCCLAllreduce::WaitForData).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hvscale.prediction.model.computation import Computation, Draw
from hvscale.prediction.model.costs import MOST_ENQUEUEING, Costs, HorovodSettings
from hvscale.prediction.model.job import PredictedJob

Floats = NDArray[np.float64]
# Horovod rounds the fusion threshold up to a multiple of this (common.h).
ATOMIC_UNIT = 64
DOUBLES = 8
SHORTEST_PERIOD = 1e-6  # seconds of a cycle without a cycle time or an agreement
WARM_UP = 2  # steps until the loop's phase no longer depends on the start


@dataclass(frozen=True)
class Traffic:
    """The fused messages of all simulated steps: arrays of one length."""

    bytes: Floats
    tensors: NDArray[np.int64]


@dataclass(frozen=True)
class SimulatedStep:
    """One simulated step of one job: seconds after the last result of the step before."""

    ready: Floats
    agreements: list[tuple[float, float]]
    messages: list[tuple[float, float, float, int]]
    """Start, end, bytes, tensors."""


@dataclass(frozen=True)
class Simulation:
    """Steps of independent jobs: arrays of shape (chains, steps), in seconds.

    `step` is the sum of the next five. `compute`: the average rank's. `slowest_rank`: what the
    slowest takes longer. `agreement`, `wire` and `copies`: what follows the slowest rank's last
    tensor. `hidden`: messages that move while ranks compute. `timelines`: the first job's steps.
    """

    step: Floats
    compute: Floats
    slowest_rank: Floats
    agreement: Floats
    wire: Floats
    copies: Floats
    hidden: Floats
    traffic: Traffic
    timelines: list[SimulatedStep]

    @property
    def typical_step(self) -> int:
        """The first job's step whose time is nearest to the mean of all jobs."""
        return int(np.abs(self.step[0] - self.step.mean()).argmin())

    @property
    def timeline(self) -> SimulatedStep:
        """The typical step's."""
        return self.timelines[self.typical_step]

    @property
    def messages_per_step(self) -> float:
        return len(self.traffic.bytes) / self.step.size


def simulate(
    job: PredictedJob,
    settings: HorovodSettings,
    costs: Costs,
    np_: int,
    *,
    chains: int = 64,
    steps: int = 32,
    seed: int = 0,
) -> Simulation:
    """Simulate `steps` steps of `chains` independent jobs on `np_` ranks."""
    generator = np.random.default_rng(seed)
    loop = Loop(job, settings, costs, np_, chains)
    computation = Computation(job, np_)
    parts: list[Floats] = []
    timelines: list[SimulatedStep] = []
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            loop.traffic.clear()
        parts.append(loop.step(computation.draw(chains, generator), generator))
        timelines.append(loop.timeline)
    step, compute, slowest, wire, copies, hidden = np.moveaxis(np.array(parts[WARM_UP:]), 0, 2)
    sizes = [bytes_ for bytes_, _ in loop.traffic]
    counts = [tensors for _, tensors in loop.traffic]
    return Simulation(
        step=step,
        compute=compute,
        slowest_rank=slowest,
        agreement=step - compute - slowest - wire - copies,
        wire=wire,
        copies=copies,
        hidden=hidden,
        traffic=Traffic(np.concatenate([np.empty(0), *sizes]), np.concatenate([np.empty(0, np.int64), *counts])),
        timelines=timelines[WARM_UP:],
    )


class Units:
    """What the loop sends together: a tensor, or all tensors of a group."""

    def __init__(self, job: PredictedJob) -> None:
        keys = [group or (number,) for number, group in enumerate(job.groups)]
        numbers = {key: position for position, key in enumerate(dict.fromkeys(keys))}
        self.of_tensor = np.array([numbers[key] for key in keys])
        self.starts = np.argsort(self.of_tensor, kind="stable")
        self.bytes = np.bincount(self.of_tensor, job.bytes.astype(np.float64)).astype(np.float64)
        self.tensors: NDArray[np.int64] = np.bincount(self.of_tensor).astype(np.int64)
        first = [int(np.flatnonzero(self.of_tensor == unit)[0]) for unit in range(len(numbers))]
        dtypes = [job.dtypes[tensor] for tensor in first]
        self.by_dtype = [np.array([one == dtype for one in dtypes]) for dtype in dict.fromkeys(dtypes)]
        self.single = len(numbers) == len(keys)

    def ready(self, tensors: Floats) -> Floats:
        """(chains, units): when all tensors of a unit are ready."""
        if self.single:
            return tensors
        begins = np.searchsorted(self.of_tensor[self.starts], np.arange(len(self.bytes)))
        ready: Floats = np.maximum.reduceat(tensors[:, self.starts], begins, axis=1)
        return ready


@dataclass
class Exposed:
    """What of a step's messages follows the slowest rank's last tensor: (chains,) seconds.

    `messages`: all of them, with what precedes that tensor.
    """

    after: Floats
    wire: Floats = field(init=False)
    copies: Floats = field(init=False)
    messages: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.wire, self.copies, self.messages = (np.zeros_like(self.after) for _ in range(3))

    @property
    def hidden(self) -> Floats:
        """The rest of the messages, which computation hides."""
        hidden: Floats = np.maximum(self.messages - self.wire - self.copies, 0)
        return hidden

    def part(self, start: Floats, end: Floats) -> Floats:
        """How much of each interval is exposed."""
        part: Floats = np.maximum(end - np.maximum(start, self.after), 0)
        return part


@dataclass(frozen=True)
class Found:
    """The units that each chain found in a cycle, in the order of fusion.

    `chain`, `unit`: ascending by both. `begins`: (chains + 1,), where each chain's units begin.
    """

    chain: NDArray[np.int64]
    unit: NDArray[np.int64]
    begins: NDArray[np.int64]

    def of_units(self, chosen: NDArray[np.bool_]) -> "Found":
        """Only units in the mask `chosen`."""
        kept = chosen[self.unit]
        if kept.all():
            return self
        chains = np.arange(len(self.begins))
        return Found(self.chain[kept], self.unit[kept], np.searchsorted(self.chain[kept], chains))


class Queue:
    """The units that each chain has not sent yet, by the moment when all ranks have seen them."""

    def __init__(self, seen: Floats) -> None:
        self.chains, self.units = seen.shape
        self.order = np.argsort(seen, axis=1, kind="stable")
        never = np.full((self.chains, 1), np.inf)
        self.moments = np.concatenate([np.take_along_axis(seen, self.order, axis=1), never], axis=1)
        self.taken = np.zeros(self.chains, np.int64)
        self.rows = np.arange(self.chains)

    @property
    def active(self) -> NDArray[np.bool_]:
        return np.asarray(self.taken < self.units)

    @property
    def earliest(self) -> Floats:
        """(chains,): infinite for a chain that has sent everything."""
        earliest: Floats = self.moments[self.rows, self.taken]
        return earliest

    def take_until(self, limits: Floats) -> Found:
        """Take what is seen at `limits` or before: (chains,) seconds."""
        until = np.maximum((self.moments <= limits[:, None]).argmin(axis=1), self.taken)
        counts = until - self.taken
        begins = np.concatenate([[0], np.cumsum(counts)])
        chain = np.repeat(self.rows, counts)
        place = np.arange(begins[-1]) + np.repeat(self.taken - begins[:-1], counts)
        self.taken = until
        unit = np.sort(chain * self.units + self.order[chain, place]) - chain * self.units
        return Found(chain, unit, begins)


class Loop:
    """The state of the background loops: seconds, relative to the last result of a step."""

    def __init__(self, job: PredictedJob, settings: HorovodSettings, costs: Costs, np_: int, chains: int) -> None:
        self.np, self.costs, self.units = np_, costs, Units(job)
        self.cycle = settings.cycle_seconds
        unit = ATOMIC_UNIT * DOUBLES
        self.threshold = -(-settings.fusion_bytes // unit) * unit
        self.agreement = costs.agreement_seconds(np_) if np_ > 1 else 0.0
        self.enqueueing = costs.enqueue_seconds(np_) * len(job.bytes) if np_ > 1 else 0.0  # of a core in a step
        self.tick = np.zeros(chains)  # start of the next cycle
        self.link_free = np.zeros(chains)  # end of the last message
        self.burst = np.full(chains, costs.burst.bytes if costs.burst else 0.0)
        self.computed = np.empty((chains, 0))  # when the slowest rank has computed each unit
        self.last = np.zeros(chains)  # the last of them
        self.free = np.ones(chains)  # the share of a core that is left for messages until then
        self.traffic: list[tuple[Floats, NDArray[np.int64]]] = []
        self.timeline = SimulatedStep(np.zeros(0), [], [])

    def step(self, drawn: Draw, generator: np.random.Generator) -> Floats:
        """Simulate a step; return the six arrays of Simulation but its agreement: (6, chains)."""
        ready = self._share_core(drawn.ready)
        self.computed = self.units.ready(ready)
        ahead = drawn.enqueued if not self.costs.blocking else None
        enqueued = self.computed if ahead is None else self.units.ready(ahead)
        last = self.last = ready.max(axis=1)
        self.timeline = SimulatedStep(np.sort(ready[0]), [], [])
        exposed, end = Exposed(last), last.copy()
        if self.np > 1:
            self._all_reduce(enqueued, exposed, end, generator)
        for state in (self.tick, self.link_free):
            state -= end
        return np.array([end, drawn.compute, last - drawn.compute, exposed.wire, exposed.copies, exposed.hidden])

    def _share_core(self, ready: Floats) -> Floats:
        """(chains, tensors): when they are ready if the ranks of a core enqueue them in turn.

        Sets the share of the core that is left meanwhile.
        """
        if not self.enqueueing:
            return ready
        first = ready.min(axis=1, keepdims=True)
        needed = self.enqueueing / np.maximum(ready.max(axis=1) - first[:, 0], SHORTEST_PERIOD)
        taken = np.minimum(needed, MOST_ENQUEUEING)
        self.free = 1 - taken
        shared: Floats = first + (ready - first) * (needed / taken)[:, None]
        return shared

    def _through(self, start: Floats, seconds: Floats) -> Floats:
        """When a message ends that takes so many seconds of a whole core."""
        shared = np.maximum(self.last - start, 0)  # time in which ranks still enqueue
        through: Floats = start + np.where(
            seconds <= shared * self.free, seconds / self.free, seconds + shared * (1 - self.free)
        )
        return through

    def _all_reduce(self, enqueued: Floats, exposed: Exposed, end: Floats, generator: np.random.Generator) -> None:
        """Run cycles until all tensors are through; `end` becomes the end of the last message."""
        # The loops of two ranks sleep at different times: one looks at its queue earlier than the
        # last one to arrive, by up to a cycle.
        seen = enqueued + self.cycle * generator.random(len(enqueued))[:, None]
        period = max(self.cycle, self.agreement, SHORTEST_PERIOD)
        queue = Queue(seen)
        while queue.active.any():
            active = queue.active
            cycles = np.ceil(np.maximum(np.where(active, queue.earliest, 0) - self.tick, 0) / period)
            self.tick += np.where(active, cycles * period, 0)
            found = queue.take_until(self.tick + 1e-12)
            start = self.tick.copy()
            now = np.where(active, start + self.agreement, start)
            if active[0]:
                self.timeline.agreements.append((float(start[0]), float(now[0])))
            for of_dtype in self.units.by_dtype:
                now = self._messages(found.of_units(of_dtype), now, exposed)
            np.maximum(end, np.where(active, np.maximum(self.link_free, now), end), out=end)
            self.tick = np.where(active, np.maximum(start + self.cycle, now), start)

    def _messages(self, found: "Found", now: Floats, exposed: Exposed) -> Floats:
        """Fuse and send what was found; return when the loop goes on."""
        for size, tensors, computed in self._fused(found):
            sends = tensors > 0
            copies = np.where(tensors > 1, self.costs.copy_seconds(size, self.np), 0.0)
            start = now if self.costs.blocking else np.maximum(np.maximum(now, self.link_free), computed)
            wire = np.where(sends, self._wire(size, start), 0.0)
            done = self._through(start, copies + wire)
            exposed.wire += np.where(sends, exposed.part(start + copies / 2, done - copies / 2), 0)
            exposed.copies += np.where(
                sends, exposed.part(start, start + copies / 2) + exposed.part(done - copies / 2, done), 0
            )
            exposed.messages += np.where(sends, done - start, 0)
            self.link_free = np.where(sends, done, self.link_free)
            self.traffic.append((size[sends], tensors[sends]))
            if sends[0]:
                self.timeline.messages.append((float(start[0]), float(done[0]), float(size[0]), int(tensors[0])))
            now = np.where(sends, done, now) if self.costs.blocking else now
        return now

    def _fused(self, found: "Found") -> Iterator[tuple[Floats, NDArray[np.int64], Floats]]:
        """The next message of each chain, (chains,): bytes and tensors, both 0 where none is left,
        and when the slowest rank has computed the last of them.

        A message stops at the first unit that does not fit, and holds at least one unit.
        """
        # Sums over all chains, from which a message's own are differences. They are exact, because
        # all are whole numbers.
        bytes_before = np.concatenate([[0.0], np.cumsum(self.units.bytes[found.unit])])
        tensors_before = np.concatenate([[0], np.cumsum(self.units.tensors[found.unit])])
        computed = np.append(self.computed[found.chain, found.unit], -np.inf)
        next_, last = found.begins[:-1], found.begins[1:]
        while (next_ < last).any():
            fits = np.searchsorted(bytes_before, bytes_before[next_] + self.threshold, side="right") - 1
            stop = np.minimum(np.maximum(fits, next_ + 1), last)
            latest = np.maximum.reduceat(computed, np.stack([next_, stop], axis=1).ravel())[::2]
            yield bytes_before[stop] - bytes_before[next_], tensors_before[stop] - tensors_before[next_], latest
            next_ = stop

    def _wire(self, size: Floats, start: Floats) -> Floats:
        burst = self.costs.burst
        if burst is None:
            return self.costs.message_seconds(size, self.np)
        idle = np.maximum(start - self.link_free, 0)
        left = np.minimum(self.burst + idle * burst.bytes_per_second, burst.bytes)
        saved = np.minimum(left, self.costs.sent_bytes(size, self.np))
        self.burst = np.where(size > 0, left - saved, self.burst)
        return self.costs.message_seconds(size, self.np, saved)
