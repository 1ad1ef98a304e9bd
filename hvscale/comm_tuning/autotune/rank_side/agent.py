"""Tunes the job that this process is a rank of, at the ends of its optimizer's steps.

All ranks count steps alike, because every step all-reduces gradients. At the end of a block of
steps, rank 0 decides which settings the next block has, and an all-reduce carries the decision. Any
failure ends the tuning with one line, and not the program.
"""

import atexit
import hashlib
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from types import ModuleType
from typing import Any

from hvscale.comm_tuning.autotune.rank_side.candidates import LARGE_BROADCAST, OF_BROADCASTS, JobShape, Space
from hvscale.comm_tuning.autotune.rank_side.horovod_knobs import CYCLE, DEFAULTS, THRESHOLD
from hvscale.comm_tuning.autotune.rank_side.request import VERSION, RankRequest, Settings, split, words
from hvscale.comm_tuning.autotune.rank_side.result import Result, largest_message
from hvscale.comm_tuning.autotune.rank_side.search import Block, BlockTimes, LiveSearch, Outcome, Plan
from hvscale.comm_tuning.autotune.rank_side.switch import Switcher, SwitchRefusedError, without_own_variables
from hvscale.comm_tuning.collectives.measure.mpi_t import ControlVariableError
from hvscale.core import exact_sums
from hvscale.core.errors import HvscaleError

HELLO_AT, BEGIN_AT = 3, 6  # steps; earlier ones allocate memory and connect ranks
# Variables with which Horovod does not start again inside a process.
NO_RESTART = ("HOROVOD_TIMELINE", "HOROVOD_DYNAMIC_PROCESS_SETS")
MESSAGE = 1024  # numbers in a decision: a count, flags, and the text
COUNT, PROBLEMS, IN_FLIGHT, LENGTH, TEXT = 0, 1, 2, 3, 8
MAX_WAITS = 20  # ends of steps with an operation in flight, after which the tuning ends
CHECK_SHARE = 100  # gradients' bytes / bytes of the sums that are checked after a switch
CHECK_NUMBERS = (1024, 1 << 20)  # fp32: from 4 KiB to 4 MiB
HANG_SECONDS = 120.0
FAILED = 3  # exit status of a rank whose change failed or hung
HANG_VARIABLE = "HVSCALE_AUTOTUNE_TIMEOUT"
PROCESS_SET = "process_set"  # argument of Horovod's operations
# Of horovod.torch, which its synchronous ones call; older releases lack some.
OPERATIONS = (
    *("allreduce_async", "allreduce_async_", "grouped_allreduce_async", "grouped_allreduce_async_"),
    *("broadcast_async", "broadcast_async_", "allgather_async", "grouped_allgather_async", "alltoall_async"),
    *("reducescatter_async", "grouped_reducescatter_async", "barrier"),
)
AGENTS: "list[Agent]" = []  # of this process: at most one


class Agent:
    """The tuning of one rank.

    `stage`: "warm-up" before the ranks have greeted each other, "tuning", "done".
    """

    def __init__(self, horovod: ModuleType, request: RankRequest | None, problem: str = "") -> None:
        """`request`: None if it could not be read, because of `problem`."""
        self.horovod, self.request, self.problem = horovod, request, problem
        self.process = os.getpid()
        self.is_elastic = bool(os.environ.get("HOROVOD_ELASTIC"))
        names = ("init", "shutdown", "join", "synchronize", "allreduce_async_", "broadcast_async_")
        self.own = {name: getattr(horovod, name) for name in names}
        self.switcher = Switcher(horovod, request, self.own["init"], self.own["shutdown"]) if request else None
        self.earlier: list[dict[str, Any]] = []  # found by this process, as in a request's `remembered`
        self.has_begun = False  # Horovod, in this process
        self.watchdog = Watchdog()
        self._reset()

    def _reset(self) -> None:
        """Forget the job: the next steps are the first ones."""
        self.stage = "warm-up"
        self.rank = -1  # until the first step has ended
        self.result = Result(self.request, self.earlier) if self.request else None
        self.boundaries = 0
        self.enqueued = 0  # all-reduces of the program since the last end of a step
        self.sizes: list[tuple[int, str]] = []  # bytes and type of each tensor of a step
        self.gradients: list[tuple[float, int]] = []  # of the last step of the warm-up, for JobShape
        self.largest_broadcast = 0  # bytes; of the steps of the warm-up after its first ones
        self.device: Any = "cpu"  # of the gradients
        self.hello: Any = None
        self.plan: Plan | None = None  # on rank 0
        self.search: LiveSearch | None = None
        self.decision: Block | Outcome | None = None  # on rank 0, until all ranks can follow it
        self.block = Block({}, 0)
        self.times: list[float] = []
        self.switch_seconds = self.waited = self.probe_seconds = self.decision_seconds = 0.0
        self.waits = 0
        self.callers: dict[int, bool] = {}  # by thread: whether the program started it
        self.resumed = time.monotonic()
        self.step_seconds = 0.0  # of the last step of the warm-up

    # What the program calls.

    def init(self, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("HOROVOD_AUTOTUNE", "0") != "0":
            self.problem = self.problem or "Horovod's own autotune is on"
        if self.horovod.is_initialized():
            return self.own["init"](*args, **kwargs)
        if self.switcher is not None and not self.problem:
            # Horovod would start again without these arguments, or write its timeline anew.
            plain = not args and not kwargs and not any(map(os.environ.get, NO_RESTART))
            self.switcher.before_init(plain and not self.is_elastic)
        hides = self.switcher is not None and self.switcher.knobs.are_redirected
        if self.is_elastic and self.has_begun:
            # The ranks of an elastic job have changed. Those that joined have the defaults.
            if self.result is not None:
                self.result.set_aside()
            self._reset()
            if self.switcher is not None:
                self.switcher.reset()
            hides = True
        self.has_begun = True
        with without_own_variables() if hides else nullcontext():
            return self.own["init"](*args, **kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        was_tuning = self.stage == "tuning"
        if self.boundaries:  # a program may start Horovod again before it trains
            self.exit("the program shut Horovod down")
        self.enqueued = 0
        found = self.own["shutdown"](*args, **kwargs)
        if was_tuning and self.switcher is not None:  # no candidate outlives its search
            self._return_to_defaults(self.switcher)
        return found

    def _return_to_defaults(self, switcher: Switcher) -> None:
        try:
            switcher.reset()
        except ControlVariableError as error:
            say(f"the defaults cannot be set again, so this rank ends: {error}")
            os._exit(FAILED)

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """All ranks return from it together, after different numbers of steps: they count anew."""
        found = self.own["join"](*args, **kwargs)
        self.rank, self.enqueued = self.horovod.rank(), 0
        if self.block.steps or self.block.probe:  # begun by all ranks
            self.times, self.waited, self.resumed = [], 0.0, time.monotonic()
        else:
            self._stop("the program called hvd.join() before all ranks had ended their warm-up")
        return found

    def synchronize(self, handle: int) -> Any:
        begin = time.monotonic()
        try:
            return self.own["synchronize"](handle)
        finally:
            self.waited += time.monotonic() - begin

    def enqueue(self, tensors: Any) -> None:
        """Note all-reduces of the program."""
        if self.stage == "done":
            return
        if self.boundaries == HELLO_AT and self.hello is None:
            self._greet()
        self.enqueued += 1
        if self.boundaries == HELLO_AT - 1:
            self.sizes += [(one.numel() * one.element_size(), str(one.dtype)) for one in tensors]
            self.device = next((one.device for one in tensors if one.is_cuda), self.device)
        if self.boundaries == BEGIN_AT - 1:
            moment = time.monotonic() - self.resumed
            self.gradients += [(moment, one.numel() * one.element_size()) for one in tensors]

    def note_thread(self) -> None:
        """Note the thread that starts an operation.

        Another thread than the one that steps can do so while Horovod starts again. PyTorch's own
        threads, which compute gradients, end before a step does.
        """
        thread = threading.get_ident()
        if self.boundaries and thread not in self.callers:
            self.callers[thread] = any(
                one.ident == thread and not isinstance(one, threading._DummyThread) for one in threading.enumerate()
            )

    def enqueue_broadcast(self, tensors: Any) -> None:
        """Note a broadcast of the program."""
        if HELLO_AT <= self.boundaries < BEGIN_AT:
            self.largest_broadcast = max(self.largest_broadcast, *(one.numel() * one.element_size() for one in tensors))

    def end_step(self, optimizer: Any = None, *_: Any) -> None:
        """Called at the end of each optimizer's step()."""
        if self.stage == "done" or not self.enqueued or os.getpid() != self.process:
            return
        # Horovod's optimizer for Adasum steps once for each gradient, while it sends the others.
        if getattr(optimizer, "_handles", None):
            return
        now = time.monotonic()
        if self.stage == "warm-up":
            self.rank = self.horovod.rank()
            self.boundaries, self.step_seconds = self.boundaries + 1, now - self.resumed
            if self.boundaries == BEGIN_AT:
                self._begin()
        else:
            self.times.append(now - self.resumed)
            if len(self.times) >= self.block.steps:
                self._decide()
        self.enqueued = 0
        self.resumed = time.monotonic()

    # The ranks greet each other.

    def _greet(self) -> None:
        """Offer to tune. It does not block, because a rank without hvscale never answers.

        It is posted before the gradients of a step, so that it has ended when the program can call
        hvd.join(): Horovod can crash if a rank joins while it has an operation in flight.
        """
        import torch

        moves = digest(self._moves())
        numbers = [1, 1 if self.problem else 0, VERSION, VERSION**2, moves, moves**2]
        self.hello = self._post(torch.tensor(numbers, dtype=torch.int64, device=self.device), "hello")

    def _begin(self) -> None:
        if not self.horovod.poll(self.hello):
            self._stop("not all ranks answer: is hvscale installed on every node?")
            return
        count, problems, *pairs = self.own["synchronize"](self.hello).tolist()
        size = self.horovod.size()
        if count != size:
            return  # a rank is in hvd.join(), which will end the tuning on all ranks
        same = all(size * squares == total**2 for total, squares in zip(pairs[::2], pairs[1::2], strict=True))
        if problems or not same or self.request is None:
            self._stop(self.problem or ("another rank cannot be tuned" if problems else "the ranks differ in version"))
            return
        self.stage = "tuning"
        if self.rank == 0 and self.result is not None:
            self.result.describe(self.sizes, size, self.horovod.local_size())
            self._make_plan(self.request, self.result)
        self._decide()

    def _moves(self) -> list[Settings]:
        """The changes that this rank's libraries accept."""
        if self.switcher is None or self.request is None or self.problem:
            return []
        single = ({knob: value} for knob, values in self.request.moves.items() for value in values)
        return [settings for settings in single if self.switcher.accepts(settings)]

    def _make_plan(self, request: RankRequest, result: Result) -> None:
        """Prepare the search on rank 0, from the steps so far and what is remembered."""
        accepted = self._moves()
        nccl = self.device != "cpu" and bool(self.horovod.nccl_built())
        if nccl:  # MPI carries no gradients
            accepted = [one for one in accepted if not split(request.variables(one)).reach_mpi]
        moves: dict[str, dict[str, object]] = {}
        for settings in accepted:
            for knob, value in settings.items():
                moves.setdefault(knob, {})[value] = None
        result.describe_messages(self.sizes, int(self._own_knob(THRESHOLD)), sorted(moves), nccl)
        remembered, problem = result.recall(accepted)
        if problem:
            say(problem)
        self.search = LiveSearch(request.steps, Space(moves, self._shape()), remembered)
        self.plan = self.search.plan()

    def _shape(self) -> JobShape:
        threshold = int(self._own_knob(THRESHOLD))
        return JobShape(
            gradient_bytes=sum(size for size, _ in self.sizes),
            step_seconds=self.step_seconds,
            has_several_nodes=self.horovod.size() > self.horovod.local_size(),
            gradients=self.gradients,
            largest_message=largest_message(self.sizes, threshold),
            largest_broadcast=self.largest_broadcast,
            threshold=threshold,
            cycle=self._own_knob(CYCLE) / 1e3,
        )

    def _own_knob(self, name: str) -> float:
        """The value of the job itself: the threshold in bytes, the cycle in ms."""
        defaults = self.switcher.knobs.defaults if self.switcher is not None else {}
        return float(defaults.get(name) or DEFAULTS[name])

    # Blocks of steps.

    def _decide(self) -> None:
        """End the block. Rank 0 chooses the next one, and all ranks switch to its settings.

        Blocks that only time a message follow each other before the next step.
        """
        while self._next_block() and self.block.probe:
            with self.watchdog.guarding(f"a message with {describe(self.block.settings)}"):
                self.probe_seconds = self._time_message(self.block.probe)

    def _next_block(self) -> bool:
        """Begin the next block; False if none begins."""
        if self.plan is not None and self.decision is None:
            self.decision = self._next(self.plan)
            if self.result is not None and self.search is not None:
                self.result.save_best(self.search)
        begin = time.monotonic()
        message = self._exchange(self._decision_text())
        self.decision_seconds = time.monotonic() - begin
        if message is None:  # the block goes on
            if self.waits >= MAX_WAITS and self.switcher is not None and not self.switcher.current:
                self._end(
                    "the program keeps operations of Horovod in flight between steps, or starts some in other threads"
                )
            return False
        outcome, self.decision, self.waits = self.decision, None, 0
        self.block, self.times, self.waited = Block(message["set"], message["steps"], message["probe"]), [], 0.0
        begin = time.monotonic()
        if not self._switch(self.block.settings):
            return False
        self.switch_seconds = time.monotonic() - begin
        if message["ends"]:
            self.stage = "done"
            if isinstance(outcome, Outcome) and self.result is not None and self.search is not None:
                self.result.finish(outcome, self.search)
        return not message["ends"]

    def _time_message(self, size: int) -> float:
        """Seconds of an all-reduce of `size` bytes, in the memory that the gradients are in."""
        import torch

        numbers = torch.zeros(max(size // 4, 1), device=self.device)
        if numbers.is_cuda:
            torch.cuda.synchronize(self.device)
        begin = time.monotonic()
        self._sum(numbers, f"probe.{size}")
        if numbers.is_cuda:
            torch.cuda.synchronize(self.device)
        return time.monotonic() - begin

    def _next(self, plan: Plan) -> Block | Outcome:
        try:
            if not self.block.steps and not self.block.probe:
                return next(plan)
            times = self.times if self.block.steps else []
            return plan.send(
                BlockTimes(times, self.switch_seconds, self.waited, self.probe_seconds, self.decision_seconds)
            )
        except StopIteration as ended:
            found: Outcome = ended.value
            return found

    def _decision_text(self) -> bytes:
        """Rank 0's decision; empty on other ranks."""
        if self.decision is None:
            return b""
        ends = isinstance(self.decision, Outcome)
        block = self.decision if isinstance(self.decision, Block) else Block(self.decision.settings)
        found = {"set": block.settings, "steps": block.steps, "probe": block.probe, "ends": ends}
        return json.dumps(found).encode()

    def _exchange(self, text: bytes) -> Any:
        """Sum the ranks' messages, of which only rank 0's has a text.

        None if a rank has operations in flight, or calls Horovod from several threads, or has sent
        nothing because it is in hvd.join().
        """
        import torch

        numbers = torch.zeros(MESSAGE, dtype=torch.int64)
        other_threads = sum(own for thread, own in self.callers.items() if thread != threading.get_ident())
        in_flight = len(self.horovod._handle_map) + other_threads
        numbers[COUNT], numbers[IN_FLIGHT], numbers[LENGTH] = 1, in_flight, len(text)
        numbers[TEXT : TEXT + len(text)] = torch.tensor(list(text), dtype=torch.int64)
        # On the gradients' device, where a rank in hvd.join() adds its zeros.
        found = self._sum(numbers.to(self.device), "decision").tolist()
        if found[COUNT] != self.horovod.size():
            return None
        if found[IN_FLIGHT]:
            self.waits += 1
            return None
        return json.loads(bytes(found[TEXT : TEXT + found[LENGTH]]))

    def _switch(self, settings: Settings) -> bool:
        """Switch, and check sums. Otherwise return to the defaults on all ranks, and return False.

        A rank that cannot do that ends, as a failed rank does.
        """
        if self.switcher is None or settings == self.switcher.current:
            return True
        with self.watchdog.guarding(f"a change to {describe(settings)}"):
            try:
                problem = self._try_switch(self.switcher, settings)
            except (HvscaleError, RuntimeError, ValueError, LookupError, OSError) as error:
                if self.is_elastic:  # Horovod continues with the ranks that are left
                    raise
                say(f"a change to {describe(settings)} failed, so this rank ends: {error}")
                os._exit(FAILED)
        if problem:
            if self.search is not None:
                self.search.reject(settings)
            self._end(f"{describe(settings)}: {problem}; the defaults are in effect again")
        return not problem

    def _try_switch(self, switcher: Switcher, settings: Settings) -> str:
        """Switch; returns what went wrong on any rank, after which all ranks have the defaults."""
        refusal = ""
        try:
            switcher.switch(settings)
        except SwitchRefusedError as error:
            refusal = str(error)
        problem = self._check(settings)
        if problem and refusal:
            raise ValueError(f"{refusal}; with the defaults, {problem}")
        if problem:
            switcher.switch({})
        return refusal or problem

    def _check(self, settings: Settings) -> str:
        """Sum known numbers, and broadcast some if that has changed; returns what is wrong on any
        rank, or nothing. Collective.
        """
        import torch

        size, rank = self.horovod.size(), self.rank
        gradient_bytes = sum(bytes_ for bytes_, _ in self.sizes)
        counts = (CHECK_NUMBERS[0], min(max(gradient_bytes // CHECK_SHARE // 4, CHECK_NUMBERS[0]), CHECK_NUMBERS[1]))
        period = exact_sums.period(size)
        numbers_of = {count: (torch.arange(count) % period).float() for count in counts}
        posted = {
            count: self._post(one + exact_sums.offset(rank), f"check.{count}") for count, one in numbers_of.items()
        }
        wrong = 0
        for count, numbers in numbers_of.items():
            found = self.own["synchronize"](posted[count])
            expected = numbers * size + exact_sums.sum_of_offsets(size)
            wrong += int(not torch.equal(found, expected))
        if any(knob in settings for knob in OF_BROADCASTS):
            root, expected = size - 1, torch.arange(LARGE_BROADCAST // 4) % period
            sent = expected.clone() if rank == root else torch.zeros_like(expected)
            handle = self.own["broadcast_async_"](sent, root, name="hvscale.autotune.check.broadcast")
            wrong += int(not torch.equal(self.own["synchronize"](handle), expected))
        total = self._sum(torch.tensor([wrong], dtype=torch.int64), "wrong").item()
        return "the ranks' sums or broadcasts are wrong" if total else ""

    def _sum(self, tensor: Any, name: str) -> Any:
        return self.own["synchronize"](self._post(tensor, name))

    def _post(self, tensor: Any, name: str) -> Any:
        return self.own["allreduce_async_"](tensor, name=f"hvscale.autotune.{name}", op=self.horovod.Sum)

    # The end.

    def _end(self, reason: str) -> None:
        """End the tuning on all ranks alike."""
        if self.stage != "done":
            self.stage = "done"
            if self.result is not None and self.rank == 0:
                self.result.stop(reason, self.search)

    def _stop(self, reason: str) -> None:
        """End the tuning on this rank; only rank 0 says why."""
        if self.stage == "done":
            return
        self.stage = "done"
        if self.rank == 0:
            if self.result is not None:
                self.result.stop(reason, self.search)
            else:
                say(f"nothing was tuned: {reason}")

    def exit(self, what: str = "the program ended") -> None:
        """End the tuning when the program ends, or shuts Horovod down; not in a forked process."""
        if os.getpid() != self.process:
            return
        if self.stage == "tuning" and self.result is not None and self.search is not None:
            what = "the ranks changed, or the program ended," if self.is_elastic else what
            # The search has counted the steps of this block if its end was decided.
            used = self.search.used + (len(self.times) if self.decision is None else 0)
            self.result.break_off(f"{what} after {used} of {self.search.steps} steps", self.search)
        elif self.stage == "warm-up" and self.boundaries:
            self._stop(f"{what} after {self.boundaries} steps")
        self.stage = "done"


class Watchdog:
    """Ends the process if a change of settings hangs; a rank that died leaves the others there."""

    def __init__(self) -> None:
        self.seconds = float(os.environ.get(HANG_VARIABLE) or HANG_SECONDS)

    def guarding(self, what: str) -> "Guard":
        return Guard(self.seconds, what)


class Guard:
    """Context in which the process must not stay longer than some seconds."""

    def __init__(self, seconds: float, what: str) -> None:
        self.seconds, self.what = seconds, what
        self.timer = threading.Timer(seconds, self._expire)
        self.timer.daemon = True

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()

    def _expire(self) -> None:
        say(
            f"{self.what} hung for {self.seconds:g} s, so this rank ends: start the job without --autotune, or "
            "first remove settings that are remembered for it with `hvscale settings forget`"
        )
        os._exit(FAILED)


def say(text: str) -> None:
    sys.stderr.write(f"hvscale: autotune: {text}\n")
    sys.stderr.flush()


def describe(settings: Settings) -> str:
    return words(settings) or "the defaults"


def digest(settings: list[Settings]) -> int:
    """A number of 24 bits, whose square fits into a sum over many ranks."""
    return int.from_bytes(hashlib.sha256(json.dumps(settings).encode()).digest()[:3], "big")


def attach(horovod: ModuleType, text: str) -> None:
    """Tune a program that has just imported the module `horovod.torch.mpi_ops`.

    `text`: the request.
    """
    from torch.optim import optimizer

    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None:
        say("nothing is tuned: it needs PyTorch 2.0 or later")
        return
    request, problem = None, ""
    try:
        request = RankRequest.parse(text)
    except (ValueError, TypeError) as error:
        problem = str(error)
    agent = Agent(horovod, request, problem)
    AGENTS.append(agent)
    for operation, note in (("allreduce", agent.enqueue), ("broadcast", agent.enqueue_broadcast)):
        for name in (f"{operation}_async_", f"{operation}_async"):
            setattr(horovod, name, _noted(getattr(horovod, name), note, grouped=False))
    for name in ("grouped_allreduce_async_", "grouped_allreduce_async"):
        setattr(horovod, name, _noted(getattr(horovod, name), agent.enqueue, grouped=True))
    for name in vars(horovod).keys() & set(OPERATIONS):
        setattr(horovod, name, _with_thread_noted(getattr(horovod, name), agent))
    for name in ("init", "shutdown", "join", "synchronize"):
        setattr(horovod, name, getattr(agent, name))
    register(agent.end_step)
    atexit.register(agent.exit)


def end_tuning() -> None:
    """End the tuning of this process, if it is tuned, and write what it has found."""
    for agent in AGENTS:
        agent.exit()


def _with_thread_noted(function: Callable[..., Any], agent: Agent) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        agent.note_thread()
        return function(*args, **kwargs)

    return call


def _noted(function: Callable[..., int], note: Callable[[Any], None], grouped: bool) -> Callable[..., int]:
    """Wrap an operation, whose first argument is its tensor or tensors.

    Only operations of all ranks are noted: other process sets may step at different times.
    """
    parameters = list(inspect.signature(function).parameters)
    position = parameters.index(PROCESS_SET)  # Horovod's own functions do not name the argument

    @wraps(function)
    def enqueue(*args: Any, **kwargs: Any) -> int:
        process_set = args[position] if len(args) > position else kwargs.get(PROCESS_SET)
        if getattr(process_set, "process_set_id", 0) == 0:
            first = args[0] if args else kwargs[parameters[0]]
            note(first if grouped else (first,))
        return function(*args, **kwargs)

    return enqueue
