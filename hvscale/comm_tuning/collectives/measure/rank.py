"""The ranks' side of `hvscale tune-collectives`: measures the variants that rank 0 selects.

The controller starts it as `python -m hvscale.comm_tuning.collectives.measure.rank`, with
HVSCALE_RUN in the environment. Rank 0 writes each sample to the run folder immediately. This module
never imports the controller.
"""

import ctypes
import os
import time
import traceback
from collections.abc import Callable

import numpy as np

from hvscale.bench.collectives import elements
from hvscale.bench.collectives.backends.mpi import MpiCall, MpiEngine
from hvscale.bench.collectives.memory import available_bytes, check_fits
from hvscale.bench.collectives.operations import COLLECTIVES
from hvscale.bench.collectives.rank_side.c_timer import CFunction
from hvscale.bench.collectives.rank_side.engine import Operands
from hvscale.bench.collectives.rank_side.rank import abort, check, raise_on_all_ranks
from hvscale.bench.collectives.request import ALL_ROOTS, BenchRequest, Refused, own_run_folder
from hvscale.bench.collectives.sizes import messages
from hvscale.comm_tuning.collectives.broadcast import DEFAULT_DEPTH, DEFAULT_RADIX, native
from hvscale.comm_tuning.collectives.decide.cost_model import fit
from hvscale.comm_tuning.collectives.decide.measurements import AlgorithmChoice, Point
from hvscale.comm_tuning.collectives.measure.mpi_t import ControlVariables, loaded_library, value_numbers
from hvscale.comm_tuning.collectives.measure.race import (
    AlgorithmVariant,
    Kind,
    SizeState,
    earlier_sizes,
    exhaustive,
    race,
    sizes_at_crossovers,
    variant_of,
    variants_at,
)
from hvscale.comm_tuning.collectives.measure.request import (
    DTYPE,
    Checked,
    CollectivesRequest,
    RankReport,
    Sample,
    Trying,
    TuningEnded,
    TuningStarted,
    reports_path,
    request_path,
)
from hvscale.comm_tuning.collectives.tables.table import MAX_CHUNK
from hvscale.core.errors import EXIT_RANK_FAILED, HvscaleError, RequestError

ROOT = 0
SAMPLE_SECONDS = 0.02  # shorter calls are repeated for about this long, and their median is the sample
MAX_CALLS = 200
ROTATING_ROOT_SECONDS = 2e-4  # shorter calls are measured with each rank as the root in turn
# The kinds for which the cost model proposes a part: a chain's best chunk.
CHAINS: tuple[Kind, ...] = (("chain", None, None), ("library", "pipeline", None))


class OwnBroadcastCall(MpiCall):
    """A call of hvscale's own broadcast, by its address."""

    def __init__(self, engine: MpiEngine, operands: Operands, choice: AlgorithmChoice) -> None:
        self.choice = choice
        # The buffer must live as long as the calls.
        self.name = ctypes.create_string_buffer(choice.algorithm.encode())
        super().__init__(engine, operands)

    def _mpi_call(self, operands: Operands) -> CFunction:
        bcast = super()._mpi_call(operands)
        choice = self.choice
        numbers = (choice.chunk_bytes or MAX_CHUNK, choice.depth or DEFAULT_DEPTH, choice.radix or DEFAULT_RADIX)
        address = int(ctypes.cast(native().hvbcast_broadcast, ctypes.c_void_p).value or 0)
        return CFunction(address, (*bcast.arguments, ctypes.addressof(self.name), *numbers))


class JobMeasurement:
    """The measurement of one job in one rank.

    All ranks run the same race on the same times. Rank 0 broadcasts whatever may differ between
    ranks, such as the clock.
    """

    def __init__(self, request: CollectivesRequest) -> None:
        self.request = request
        self.collective, self.dtype = COLLECTIVES.get(request.operation), elements.find_dtype(DTYPE)
        self.bench_request = BenchRequest(
            collective=request.operation,
            backend=request.mpi,
            path="host",
            dtype=DTYPE,
            device="cpu",
            root=ROOT,
            in_place="in",
            check=True,
            until_interval=None,
            sizes=[],
        )
        self.engine = MpiEngine(self.bench_request)
        self.rank, self.np = self.engine.rank, self.engine.np
        self.deadline = None if request.seconds is None else time.monotonic() + request.seconds
        node = self.engine.communicator.Split_type(self.engine.mpi.COMM_TYPE_SHARED)
        self.ranks_on_this_node = node.size
        self.ranks_per_node = max(self.engine.allgather(node.size))
        node.Free()
        self.control_variables = self._make_control_variables()
        self.variables: dict[AlgorithmChoice, dict[str, str]] = {}
        self.rejected: list[AlgorithmChoice] = []
        self._select_choices()
        self.engines: dict[AlgorithmChoice, MpiEngine] = {}
        self.rotates_root: dict[int, bool] = {}
        self.warm: set[Kind] = set()  # called before, so their connections and memory exist

    def _make_control_variables(self) -> ControlVariables:
        library = loaded_library()
        every = [one for candidate in self.request.candidates for one in candidate.variables.items()]
        words = [(name, word) for name, word in every if not word.isdigit()]
        numbers = self.engine.broadcast_from_root(value_numbers(library, words) if self.rank == 0 else {})
        return ControlVariables(library, numbers)

    def _select_choices(self) -> None:
        """Leave out choices that the library rejects, and two-level with one rank per node."""
        for candidate in self.request.candidates:
            choice = candidate.choice
            if not all(self.engine.allgather(self.control_variables.accepts(candidate.variables))):
                self.rejected.append(choice)
            elif choice.algorithm != "two-level" or self.ranks_per_node > 1:
                self.variables[choice] = candidate.variables

    def measure(self, write: Callable[[RankReport], None]) -> bool:
        """Measure all sizes, then sizes near crossovers; returns whether all were finished.

        Raises RequestError if the buffers do not fit into the memory of a node.
        """
        sizes = self.in_whole_blocks(self.request.sizes)
        raise_on_all_ranks(self.engine, self.memory_problem(max(sizes)))
        self.write, self.buffer = write, self.engine.buffer("cpu", max(sizes))
        self.states: list[SizeState] = []
        finished = self.measure_all(sizes)
        if finished and self.request.refine:
            finished = self.measure_all(self.in_whole_blocks(sizes_at_crossovers(self.states)))
        return finished

    def measure_all(self, sizes: list[int]) -> bool:
        """Measure sizes until the time limit; returns whether all were finished.

        The job's first size is measured in any case, so that a study always has a table.
        """
        finished = True
        for number, size in enumerate(sizes):
            is_late = self.deadline is not None and time.monotonic() > self.deadline
            if len(self.states) > 0 and self.engine.broadcast_from_root(is_late):
                return False
            finished = self.measure_size(size, len(sizes) - number) and finished
        return finished

    def in_whole_blocks(self, sizes: list[int]) -> list[int]:
        return [message.bytes for message in messages(self.collective, self.dtype, self.np, sizes)]

    def memory_problem(self, largest: int) -> str:
        try:
            check_fits(largest, 1, self.ranks_on_this_node, available_bytes(), "the memory of a node")
        except RequestError as error:
            return str(error)
        return ""

    def measure_size(self, size: int, sizes_left: int) -> bool:
        """Measure one size; returns whether its race finished within its time limit.

        `sizes_left`: the sizes still to measure, including this one. Larger sizes get more time.
        """
        now = time.monotonic()
        end = None if self.deadline is None else now + 2 * (self.deadline - now) / (sizes_left + 1)
        time_is_up = False

        def over() -> bool:
            nonlocal time_is_up
            time_is_up = time_is_up or self.engine.broadcast_from_root(end is not None and time.monotonic() > end)
            return time_is_up

        state = self.initial_state(size)
        below = [one for one in self.states if one.size < size]
        proposed = self.engine.broadcast_from_root(self.proposed_parts(size) if self.rank == 0 else {})
        earlier = earlier_sizes(below)
        schedule = exhaustive(state, over) if self.request.exhaustive else race(state, earlier, proposed, over)
        self.calls: dict[AlgorithmVariant, int] = {}
        try:
            variant = next(schedule)
            while True:
                variant = schedule.send(self.sample(state, variant))
        except StopIteration as finished:
            finalists: list[AlgorithmVariant] = finished.value
        for variant in finalists:
            self.check(state, variant)
        self.states = sorted([*self.states, state], key=lambda one: one.size)
        return not time_is_up

    def initial_state(self, size: int) -> SizeState:
        """The variants at this size, with the times of earlier starts."""
        members = variants_at(self.variables, size)
        if self.request.only:
            wanted = {variant_of(choice, size) for choice in self.request.only[size]}
            members = {variant: choices for variant, choices in members.items() if variant in wanted}
        state = SizeState(size, members)
        known = {point.choice: point.seconds for point in self.request.known if point.bytes == size}
        for variant, choices in state.members.items():
            if choices[0] in known:
                state.times[variant] = list(known[choices[0]])
        return state

    def proposed_parts(self, size: int) -> dict[Kind, int]:
        """The best chunk of a chain in bytes, from a cost model fitted to this job's
        measurements.
        """
        points = [
            Point(
                operation=self.request.operation,
                np=self.np,
                ranks_per_node=self.ranks_per_node,
                bytes=state.size,
                eager_limit_bytes=self.request.eager_limit_bytes,
                choice=state.members[variant][0],
                seconds=seconds,
            )
            for state in self.states
            for variant, seconds in state.times.items()
        ]
        fits = fit(points)
        chunk = next(iter(fits.values())).best_chunk(self.np, size) if fits else None
        return {kind: chunk for kind in CHAINS if chunk is not None}

    def sample(self, state: SizeState, variant: AlgorithmVariant) -> float:
        """Measure one call; returns its seconds until the last rank has finished."""
        if not state.times.get(variant) and self.rank == 0:
            self.write(Trying(bytes=state.size, choice=state.members[variant][0]))
        seconds = self.steady_seconds(variant, self.prepare_call(state, variant, self.root(state)))
        if self.rank == 0:
            self.write(Sample(bytes=state.size, choices=state.members[variant], seconds=seconds))
        return seconds

    def steady_seconds(self, variant: AlgorithmVariant, call: MpiCall) -> float:
        """The median seconds of several calls, after half as many warm-up calls.

        The median reduces the effect of other activity on the machine. The warm-up brings caches,
        and links that let a burst through, into a steady state. Earlier calls determine the number
        of calls; after a slow first call that number is too small, so the sample is repeated.
        """
        calls, warm = self.calls.get(variant, 1), variant.kind in self.warm
        while True:
            if calls > 1:
                call.time(-(-calls // 2), 1, True)
            seconds = self.timed(call, calls)
            wanted = int(np.clip(SAMPLE_SECONDS / seconds / len(call.operands.roots), 1, MAX_CALLS))
            if warm and wanted <= 2 * calls:
                break
            calls, warm = max(calls, wanted), True
        self.calls[variant] = wanted
        self.warm.add(variant.kind)
        return seconds

    def root(self, state: SizeState) -> int:
        """The root of the measured calls: each rank in turn for short calls, else rank 0.

        Ranks leave a barrier microseconds apart, which is as long as a small message takes. A fixed
        root may start early, or a message may arrive before its receiver waits for it; the call
        then appears faster than it is. Rotating the root prevents both.
        """
        smaller = (rotates for size, rotates in self.rotates_root.items() if size <= state.size)
        if not self.collective.rooted or not all(smaller):
            return ROOT
        if state.size not in self.rotates_root:
            baseline = self.prepare_call(state, state.baseline, ROOT)
            self.rotates_root[state.size] = self.steady_seconds(state.baseline, baseline) < ROTATING_ROOT_SECONDS
        return ALL_ROOTS if self.rotates_root[state.size] else ROOT

    def timed(self, call: MpiCall, calls: int) -> float:
        """Median seconds of a call on the slowest rank, with a barrier before each call."""
        return float(np.median(np.max(self.engine.allgather(call.time(calls, 1, True)), axis=0)))

    def check(self, state: SizeState, variant: AlgorithmVariant) -> None:
        """Call once with fresh operands and check every element of the result."""
        call = self.prepare_call(state, variant, ROOT)
        wrong, _ = check(self.engine, call.operands, call)
        if self.rank == 0:
            self.write(Checked(bytes=state.size, choices=state.members[variant], wrong=wrong))

    def prepare_call(self, state: SizeState, variant: AlgorithmVariant, root: int) -> MpiCall:
        """A call of the variant's first choice; sets the library's control variables for it."""
        choice = state.members[variant][0]
        self.control_variables.set(self.variables[choice])
        count = state.size // (self.collective.blocks_in_buffer(self.np) * self.dtype.bytes)
        operands = Operands(
            self.collective, self.dtype, count, self.rank, self.np, root, True, self.buffer, self.buffer
        )
        if choice.algorithm != "library":
            return OwnBroadcastCall(self.engine, operands, choice)
        if choice not in self.engines:
            # A new communicator uses the current values of the control variables.
            self.engines[choice] = MpiEngine(self.bench_request)
        return MpiCall(self.engines[choice], operands)


def main() -> None:
    run = own_run_folder()
    try:
        request = CollectivesRequest.model_validate_json(request_path(run).read_text())
        measurement = JobMeasurement(request)
        with open(reports_path(run) if measurement.rank == 0 else os.devnull, "w") as results:  # noqa: PTH123

            def write(report: RankReport) -> None:
                # Flushed, so that the reports of a killed job are not lost.
                results.write(report.model_dump_json(exclude_none=True) + "\n")
                results.flush()

            write(
                TuningStarted(
                    library=measurement.engine.library,
                    ranks_per_node=measurement.ranks_per_node,
                    rejected=measurement.rejected,
                )
            )
            write(TuningEnded(finished=measurement.measure(write)))
    except RequestError as error:
        # Several ranks may fail: all write the same reason.
        with reports_path(run).open("a") as results:
            results.write(Refused(reason=str(error)).model_dump_json() + "\n")
        abort(f"hvscale: {error}", error.exit_status)
    except HvscaleError as error:
        abort(f"hvscale: {error}", error.exit_status)
    except Exception:
        abort(traceback.format_exc(), EXIT_RANK_FAILED)


if __name__ == "__main__":
    main()
