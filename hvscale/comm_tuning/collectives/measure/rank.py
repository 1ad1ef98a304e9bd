"""Runs inside every rank of `hvscale tune-collectives`: measures what rank 0 decides to, and rank 0 writes each sample down at once.

Started as `python -m hvscale.comm_tuning.collectives.measure.rank` with HVSCALE_RUN in the environment. Never imports the controller.
"""

import ctypes
import os
import time
import traceback
from collections.abc import Callable

import numpy as np

from hvscale.bench.collectives import elements
from hvscale.bench.collectives.backends.mpi import MpiEngine, MpiWork
from hvscale.bench.collectives.memory import available_bytes, check_fits
from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.bench.collectives.rank_side.engine import Operands
from hvscale.bench.collectives.rank_side.rank import check, give_up, refuse_together
from hvscale.bench.collectives.rank_side.timed_library import CFunction
from hvscale.bench.collectives.request import ALL_ROOTS, run_of_this_rank
from hvscale.bench.collectives.request import Request as BenchRequest
from hvscale.bench.collectives.sizes import messages
from hvscale.comm_tuning.collectives.broadcast.call import DEFAULT_DEPTH, DEFAULT_RADIX, native
from hvscale.comm_tuning.collectives.decide.cost_model import fit
from hvscale.comm_tuning.collectives.decide.measurements import Choice, Point
from hvscale.comm_tuning.collectives.measure.mpi_t import Told, loaded_library, numbers_of
from hvscale.comm_tuning.collectives.measure.race import (
    Field,
    Kind,
    Way,
    before,
    exhaustive,
    race,
    refined,
    way_of,
    ways,
)
from hvscale.comm_tuning.collectives.measure.request import (
    DTYPE,
    Answer,
    Begun,
    Checked,
    Ended,
    Impossible,
    Request,
    Sample,
    Trying,
    answers_path,
    request_path,
)
from hvscale.comm_tuning.collectives.tables.table import MOST_CHUNK
from hvscale.core.errors import EXIT_RANK_FAILED, HvscaleError, RequestError

ROOT = 0
SAMPLE_SECONDS = 0.02  # a sample of what is faster is the median of several calls
MOST_CALLS = 200
TURNING_SECONDS = 2e-4  # what is faster is measured with all roots in turn
# What the cost model's chunk of a chain is for.
CHAINS: tuple[Kind, ...] = (("chain", None, None), ("library", "pipeline", None))


class OurWork(MpiWork):
    """A broadcast of ours, by its address."""

    def __init__(self, engine: MpiEngine, operands: Operands, choice: Choice) -> None:
        self.choice = choice
        # The text has to live as long as the calls.
        self.name = ctypes.create_string_buffer(choice.algorithm.encode())
        super().__init__(engine, operands)

    def _mpi_call(self, operands: Operands) -> CFunction:
        bcast = super()._mpi_call(operands)
        choice = self.choice
        numbers = (choice.chunk_bytes or MOST_CHUNK, choice.depth or DEFAULT_DEPTH, choice.radix or DEFAULT_RADIX)
        address = int(ctypes.cast(native().hvbcast_broadcast, ctypes.c_void_p).value or 0)
        return CFunction(address, (*bcast.arguments, ctypes.addressof(self.name), *numbers))


class Measuring:
    """One job's measurement. All ranks run the same race over the same figures; what differs between them, such as the time, rank 0 says."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.collective, self.dtype = COLLECTIVES.get(request.operation), elements.find_dtype(DTYPE)
        self.asked = BenchRequest(
            collective=request.operation,
            backend=request.mpi,
            path="host",
            dtype=DTYPE,
            device="cpu",
            root=ROOT,
            places="in",
            check=True,
            until_interval=None,
            sizes=[],
        )
        self.base = MpiEngine(self.asked)
        self.rank, self.np = self.base.rank, self.base.np
        self.deadline = None if request.seconds is None else time.monotonic() + request.seconds
        node = self.base.communicator.Split_type(self.base.mpi.COMM_TYPE_SHARED)
        self.on_this_node = node.size
        self.ranks_per_node = max(self.base.gathered(node.size))
        node.Free()
        self.told = self._told()
        self.variables: dict[Choice, dict[str, str]] = {}
        self.refused: list[Choice] = []
        self._sort_out()
        self.engines: dict[Choice, MpiEngine] = {}
        self.turning: dict[int, bool] = {}
        self.warm: set[Kind] = set()  # called before, so that connections and memory are there

    def _told(self) -> Told:
        library = loaded_library()
        every = [one for candidate in self.request.candidates for one in candidate.variables.items()]
        words = [(name, word) for name, word in every if not word.isdigit()]
        return Told(library, self.base.decided(numbers_of(library, words) if self.rank == 0 else {}))

    def _sort_out(self) -> None:
        """Leave out what this library does not know, and two levels where there is one."""
        for candidate in self.request.candidates:
            choice = candidate.choice
            if not all(self.base.gathered(self.told.knows(candidate.variables))):
                self.refused.append(choice)
            elif choice.algorithm != "two-level" or self.ranks_per_node > 1:
                self.variables[choice] = candidate.variables

    def measure(self, write: Callable[[Answer], None]) -> bool:
        """All sizes, then those between them. Whether nothing is left. Raises RequestError where the buffers of a node do not fit."""
        sizes = self.whole(self.request.sizes)
        refuse_together(self.base, self.problem(max(sizes)))
        self.write, self.buffer = write, self.base.buffer("cpu", max(sizes))
        self.fields: list[Field] = []
        finished = self.measure_all(sizes)
        if finished and self.request.refine:
            finished = self.measure_all(self.whole(refined(self.fields)))
        return finished

    def measure_all(self, sizes: list[int]) -> bool:
        finished = True
        for number, size in enumerate(sizes):
            if self.base.decided(self.deadline is not None and time.monotonic() > self.deadline):
                return False
            finished = self.measure_size(size, len(sizes) - number) and finished
        return finished

    def whole(self, sizes: list[int]) -> list[int]:
        """In whole blocks."""
        return [message.bytes for message in messages(self.collective, self.dtype, self.np, sizes)]

    def problem(self, largest: int) -> str:
        try:
            check_fits(largest, 1, self.on_this_node, available_bytes(), "the memory of a node")
        except RequestError as error:
            return str(error)
        return ""

    def measure_size(self, size: int, left: int) -> bool:
        """Whether it was measured to its end. `left`: sizes still to measure, this one included: the larger ones get more of the time."""
        now = time.monotonic()
        end = None if self.deadline is None else now + 2 * (self.deadline - now) / (left + 1)
        ended = [False]

        def over() -> bool:
            ended[0] = ended[0] or self.base.decided(end is not None and time.monotonic() > end)
            return ended[0]

        of = self.known(size)
        below = [one for one in self.fields if one.size < size]
        proposed = self.base.decided(self.proposed(size) if self.rank == 0 else {})
        course = exhaustive(of, over) if self.request.exhaustive else race(of, before(below), proposed, over)
        self.calls: dict[Way, int] = {}
        try:
            way = next(course)
            while True:
                way = course.send(self.sample(of, way))
        except StopIteration as finished:
            contenders: list[Way] = finished.value
        for way in contenders:
            self.check(of, way)
        self.fields = sorted([*self.fields, of], key=lambda one: one.size)
        return not ended[0]

    def known(self, size: int) -> Field:
        """With what was measured at this size before."""
        members = ways(self.variables, size)
        if self.request.only:
            wanted = {way_of(choice, size) for choice in self.request.only[size]}
            members = {way: choices for way, choices in members.items() if way in wanted}
        of = Field(size, members)
        before = {point.choice: point.seconds for point in self.request.known if point.bytes == size}
        for way, choices in of.members.items():
            if choices[0] in before:
                of.times[way] = list(before[choices[0]])
        return of

    def proposed(self, size: int) -> dict[Kind, int]:
        """The chain's best chunk, by the cost model over what has been measured in this job."""
        points = [
            Point(
                operation=self.request.operation,
                np=self.np,
                ranks_per_node=self.ranks_per_node,
                bytes=of.size,
                eager_limit_bytes=self.request.eager_limit_bytes,
                choice=of.members[way][0],
                seconds=seconds,
            )
            for of in self.fields
            for way, seconds in of.times.items()
        ]
        found = fit(points)
        chunk = next(iter(found.values())).best_chunk(self.np, size) if found else None
        return {kind: chunk for kind in CHAINS if chunk is not None}

    def sample(self, of: Field, way: Way) -> float:
        """Seconds of one call, until the last rank is done."""
        if not of.times.get(way) and self.rank == 0:
            self.write(Trying(bytes=of.size, choice=of.members[way][0]))
        seconds = self.in_a_stream(way, self.work(of, way, self.root(of)))
        if self.rank == 0:
            self.write(Sample(bytes=of.size, choices=of.members[way], seconds=seconds))
        return seconds

    def in_a_stream(self, way: Way, work: MpiWork) -> float:
        """Of what is fast the median over several calls, which nothing else on the machine moves, behind half as many that are not timed: a link that
        lets a burst through, and caches, are then as in a steady stream. How many, the calls before tell: after a slow first one there are too few,
        and they are made again."""
        calls, warm = self.calls.get(way, 1), way.kind in self.warm
        while True:
            if calls > 1:
                work.time(-(-calls // 2), 1, True)
            seconds = self.timed(work, calls)
            wanted = int(np.clip(SAMPLE_SECONDS / seconds / len(work.operands.roots), 1, MOST_CALLS))
            if warm and wanted <= 2 * calls:
                break
            calls, warm = max(calls, wanted), True
        self.calls[way] = wanted
        self.warm.add(way.kind)
        return seconds

    def root(self, of: Field) -> int:
        """Ranks leave a meeting microseconds apart, which is as long as a small message takes: so a root may run ahead, or a message be there
        before a rank looks for it. With all roots in turn neither makes it look shorter than it is. What takes longer has one root, as jobs have."""
        if not self.collective.rooted or any(not turning for size, turning in self.turning.items() if size <= of.size):
            return ROOT
        if of.size not in self.turning:
            self.turning[of.size] = self.in_a_stream(of.base, self.work(of, of.base, ROOT)) < TURNING_SECONDS
        return ALL_ROOTS if self.turning[of.size] else ROOT

    def timed(self, work: MpiWork, calls: int) -> float:
        """Each call after a meeting of the ranks."""
        return float(np.median(np.max(self.base.gathered(work.time(calls, 1, True)), axis=0)))

    def check(self, of: Field, way: Way) -> None:
        """One call with fresh operands, whose every element is looked at."""
        work = self.work(of, way, ROOT)
        wrong, _ = check(self.base, work.operands, work)
        if self.rank == 0:
            self.write(Checked(bytes=of.size, choices=of.members[way], wrong=wrong))

    def work(self, of: Field, way: Way, root: int) -> MpiWork:
        """A call of the way's first choice, with the library told what it takes."""
        choice = of.members[way][0]
        self.told.tell(self.variables[choice])
        count = of.size // (self.collective.largest(self.np) * self.dtype.bytes)
        operands = Operands(
            self.collective, self.dtype, count, self.rank, self.np, root, True, self.buffer, self.buffer
        )
        if choice.algorithm != "library":
            return OurWork(self.base, operands, choice)
        if choice not in self.engines:
            # A communicator made now takes what the library has been told.
            self.engines[choice] = MpiEngine(self.asked)
        return MpiWork(self.engines[choice], operands)


def main() -> None:
    run = run_of_this_rank()
    try:
        request = Request.model_validate_json(request_path(run).read_text())
        measuring = Measuring(request)
        with open(answers_path(run) if measuring.rank == 0 else os.devnull, "w") as results:  # noqa: PTH123

            def write(answer: Answer) -> None:
                # At once, so that a job that is killed leaves what it had.
                results.write(answer.model_dump_json(exclude_none=True) + "\n")
                results.flush()

            write(
                Begun(
                    library=measuring.base.library,
                    ranks_per_node=measuring.ranks_per_node,
                    refused=measuring.refused,
                )
            )
            write(Ended(finished=measuring.measure(write)))
    except RequestError as error:
        # More ranks than one may come here: all say the same.
        with answers_path(run).open("a") as results:
            results.write(Impossible(why=str(error)).model_dump_json() + "\n")
        give_up(f"hvscale: {error}", error.exit_status)
    except HvscaleError as error:
        give_up(f"hvscale: {error}", error.exit_status)
    except Exception:
        give_up(traceback.format_exc(), EXIT_RANK_FAILED)


if __name__ == "__main__":
    main()
