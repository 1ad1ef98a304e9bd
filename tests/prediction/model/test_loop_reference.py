"""Horovod's loop for many jobs at once, against one job after the other in plain Python."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.prediction.model.computation import Draw
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.horovod_loop import Loop
from tests.prediction.model.jobs import SimpleCosts, make_job

MB = 1_000_000
NP = 4


@dataclass
class PlainLoop:
    """The background loop of one job. `sizes`, `dtypes`: of the tensors."""

    sizes: list[int]
    dtypes: list[str]
    settings: HorovodSettings
    costs: SimpleCosts
    tick: float = 0.0
    link_free: float = 0.0
    last: float = 0.0
    free: float = 1.0

    def step(self, seen: list[float], ready: list[float]) -> tuple[float, list[tuple[float, int]]]:
        """Send all tensors; return the step's seconds, and bytes and tensors of its messages."""
        last = self.last = max(ready)
        span = last - min(ready)
        self.free = 1 - self.costs.enqueue * len(ready) / span if span else 1.0
        agreement = self.costs.agreement_seconds(NP)
        period = max(self.settings.cycle_seconds, agreement)
        waiting, sent, end = set(range(len(seen))), [], last
        while waiting:
            earliest = min(seen[tensor] for tensor in waiting)
            self.tick += np.ceil(max(earliest - self.tick, 0) / period) * period
            found = sorted(tensor for tensor in waiting if seen[tensor] <= self.tick + 1e-12)
            waiting -= set(found)
            now = self.tick + agreement
            for dtype in dict.fromkeys(self.dtypes):
                for size, tensors in self.fuse([one for one in found if self.dtypes[one] == dtype]):
                    now = self.send(size, tensors, now)
                    sent.append((size, tensors))
            end = max(end, self.link_free, now)
            self.tick = max(self.tick + self.settings.cycle_seconds, now)
        self.tick, self.link_free = self.tick - end, self.link_free - end
        return end, sent

    def fuse(self, found: list[int]) -> list[tuple[float, int]]:
        limit = -(-self.settings.fusion_bytes // 512) * 512
        messages: list[tuple[float, int]] = []
        for tensor in found:
            size = self.sizes[tensor]
            if messages and messages[-1][0] + size <= limit:
                messages[-1] = messages[-1][0] + size, messages[-1][1] + 1
            else:
                messages.append((size, 1))
        return messages

    def send(self, size: float, tensors: int, now: float) -> float:
        """Return when the loop goes on."""
        copies = float(self.costs.copy_seconds(np.array(size), NP)) if tensors > 1 else 0.0
        start = now if self.costs.blocking else max(now, self.link_free)
        work = copies + float(self.costs.message_seconds(np.array(size), NP))
        meanwhile = max(self.last - start, 0.0) * self.free  # of it, while ranks enqueue
        self.link_free = start + work / self.free if work <= meanwhile else max(start, self.last) + work - meanwhile
        return self.link_free if self.costs.blocking else now


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 3 * MB), min_size=1, max_size=30),
    types=st.sampled_from([["float32"], ["float32", "float16"]]),
    threshold=st.integers(0, 5 * MB),
    cycle=st.floats(1e-4, 5e-3),
    blocking=st.booleans(),
    chains=st.integers(1, 5),
    enqueue=st.sampled_from([0.0, 1e-4]),
    seed=st.integers(0, 1000),
)
def test_jobs_simulated_together_do_as_each_alone(
    sizes: list[int],
    types: list[str],
    threshold: int,
    cycle: float,
    blocking: bool,
    chains: int,
    enqueue: float,
    seed: int,
) -> None:
    dtypes = (types * len(sizes))[: len(sizes)]
    job = make_job(np.zeros((2, 2, len(sizes))), sizes, dtypes=dtypes)
    knobs = HorovodSettings(cycle_seconds=cycle, fusion_bytes=threshold)
    costs = SimpleCosts(start_seconds=1e-5, bytes_per_second=1e8, blocking=blocking, copy=1e-9, enqueue=enqueue)
    together = Loop(job, knobs, costs, NP, chains)
    alone = [PlainLoop(sizes, dtypes, knobs, costs) for _ in range(chains)]
    phases, generator = np.random.default_rng(seed), np.random.default_rng(seed)
    for step in range(3):
        ready = np.random.default_rng([seed, step]).uniform(0, 0.05, (chains, len(sizes)))
        ready[:, 0], ready[:, -1] = 0, 0.05  # so long that all ranks of a core can enqueue meanwhile
        seen = ready + cycle * phases.random(chains)[:, None]
        together.traffic.clear()
        end = together.step(Draw(ready, ready.max(axis=1)), generator)[0]
        results = [loop.step(row.tolist(), times.tolist()) for loop, row, times in zip(alone, seen, ready, strict=True)]
        assert end == pytest.approx([seconds for seconds, _ in results], abs=1e-9)
        messages = [
            (float(size), int(tensors))
            for sizes_, counts in together.traffic
            for size, tensors in zip(sizes_, counts, strict=True)
        ]
        assert sorted(messages) == sorted(message for _, sent in results for message in sent)
