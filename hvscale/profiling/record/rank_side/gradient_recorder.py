"""Records when a rank enqueues its gradients and how long it waits for them.

It writes $HVSCALE_GRADIENTS/gradients-NNNNN.hvg, one frame for each step, so that a killed rank
loses at most its last step. docs/reference/gradients-format.md describes the file. Any failure ends
the recording with one line on stderr and never the program.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import struct
import sys
import threading
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from functools import wraps
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any

MAGIC = b"hvgrad\r\n"
VERSION = 2
FRAME = struct.Struct("<4sII")  # kind, bytes of the payload, its CRC-32
STEP = struct.Struct("<QQQII")  # step, start and end in ns, number of enqueues, number of waits
CUDA = struct.Struct("<QQI")  # step, ns from its last wait to its end on the GPU, number of enqueues
NOT_ON_GPU = 2**64 - 1
UNKNOWN = (-1, -1, None, -1)  # in place of a tensor's number, size, type and process set
# What a program may set for its libraries itself, before Horovod starts.
SETTINGS = ("HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CACHE_CAPACITY", "OMPI_MCA_mpi_yield_when_idle")
# Of an all-reduce of one tensor in Horovod 0.23 to 0.28.
ARGUMENTS = ("tensor", "average", "name", "op", "prescale_factor", "postscale_factor", "process_set")
MOST_CUDA_SHARE = 0.003  # of all steps, that timing some by CUDA events may take of the host's time
MOST_INTERVAL = 32  # of the timed steps
MOST_BYTES = 64 << 20  # of one rank's file; 136 tensors take 1.7 KB a step
MOST_ENQUEUES = 1 << 20  # in one step: more means that no step was recognised


class CudaStep:
    """The CUDA events of one step, on the stream in which the program computes.

    `ready`: of each enqueue, None for a tensor that is not on the GPU. `waited`: after the last
    wait. `end`: the next step's start.
    """

    def __init__(self, start: Any) -> None:
        self.start = start
        self.waited: Any = None
        self.end: Any = None
        self.ready: list[Any] = []

    def pad(self, enqueues: int) -> None:
        """Add the entries of enqueues that were not timed, up to so many enqueues."""
        self.ready += [None] * (enqueues - len(self.ready))

    def split(self, enqueues: int) -> CudaStep:
        """Cut the step after so many enqueues; return the rest as the next step."""
        rest = CudaStep(None)
        rest.ready, self.ready = self.ready[enqueues:], self.ready[:enqueues]
        return rest

    @property
    def is_whole(self) -> bool:
        return None not in (self.start, self.waited, self.end) and any(event is not None for event in self.ready)

    def columns(self, number: int) -> bytes:
        """Return the payload of its frame. Every event must have completed."""
        ready = [NOT_ON_GPU if event is None else nanoseconds(self.start, event) for event in self.ready]
        head = CUDA.pack(number, nanoseconds(self.waited, self.end), len(ready))
        return head + array("Q", ready).tobytes()


def nanoseconds(start: Any, end: Any) -> int:
    """The time between two completed CUDA events, at least 0."""
    return max(0, round(1e6 * float(start.elapsed_time(end))))


class CudaTimes:
    """Times gradients on the GPU of the first one, in as many steps as cost little.

    Every step, every 2nd, 4th, ...: ranks that differ then time some steps in common. The first
    steps are timed more often than later ones, so that a short recording has several.
    """

    def __init__(self, write: Callable[[bytes, bytes], None]) -> None:
        self.write = write
        self.active = True
        self.device: Any = None  # None: no gradient was on a GPU yet
        self.mark: Any = None  # the event of the last mark
        self.late: Any = None  # after the last wait since that mark
        self.interval, self.spent_ns = 1, 0
        # Number, its nanoseconds, what its events took of them. The events may be pending.
        self.steps: deque[tuple[int, int, int, CudaStep]] = deque()
        self.free: list[Any] = []  # events to use again
        self.streams: dict[Any, Any] = {}  # by what PyTorch calls the current stream

    def is_timed(self, number: int) -> bool:
        return self.device is not None and number % self.interval == 0

    def is_on_gpu(self, tensor: Any) -> bool:
        """Whether the tensor is on the GPU that is timed."""
        return bool(self.active and tensor.is_cuda and tensor.device == self.device)

    def event(self, event: Any = None) -> Any:
        """Record `event`, or another one, on the stream in which the program computes."""
        if not self.active:
            return None
        begin = time.monotonic_ns()
        try:
            torch = sys.modules["torch"]
            if event is None:
                event = self.free.pop() if self.free else torch.cuda.Event(enable_timing=True)
            event.record(self._stream(torch))
        except Exception as error:
            self._stop(error)
            return None
        self.spent_ns += time.monotonic_ns() - begin
        return event

    def _stream(self, torch: Any) -> Any:
        """The current stream. torch.cuda.current_stream() makes an object each time, in 3 us."""
        current = getattr(torch._C, "_cuda_getCurrentStream", None)
        if current is None:
            return torch.cuda.current_stream(self.device)
        key = current(self.device.index)
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = torch.cuda.current_stream(self.device)
        return stream

    def add(self, number: int, nanoseconds_of_step: int, step: CudaStep) -> None:
        """Take a step of the program, to be written once its events have completed."""
        if self.active and step.is_whole:
            self.steps.append((number, nanoseconds_of_step, self.spent_ns, step))
        self.spent_ns = 0
        self.write_steps()

    def write_steps(self, wait: bool = False) -> None:
        """Write the steps whose events have completed, without blocking the program."""
        while self.steps:
            number, duration, spent, step = self.steps[0]
            begin = time.monotonic_ns()
            try:
                if wait:
                    step.end.synchronize()
                elif not step.end.query():
                    return
                payload = step.columns(number)
            except Exception as error:
                self._stop(error)
                return
            self.write(b"CUDA", payload)
            self.steps.popleft()
            self.free += [event for event in step.ready if event is not None]
            self.choose_interval(number, duration, spent + time.monotonic_ns() - begin)

    def choose_interval(self, number: int, nanoseconds_of_step: int, spent_ns: int) -> None:
        """Time as many steps as cost MOST_CUDA_SHARE of all steps, if they cost as step `number`.

        Costly steps are 1, 2, 3, 4, 6, 8, 12, 16, 24, ...
        """
        most = min(MOST_INTERVAL, number // 2)
        self.interval = 1
        while 2 * self.interval <= most and spent_ns > MOST_CUDA_SHARE * self.interval * nanoseconds_of_step:
            self.interval *= 2

    def _stop(self, error: Exception) -> None:
        """Record only the host's times from now on."""
        self.active, self.device = False, None
        self.steps.clear()
        sys.stderr.write(f"hvscale: times on the GPU are no longer recorded: {error}\n")


class StepLog:
    """The enqueues and waits of one step. native/gradients/step_log.c has the same in C."""

    def __init__(self) -> None:
        # By name: number, size, type and process set of its last tensor.
        self.known: dict[str, tuple[int, int, Any, int]] = {}
        self.seen: set[int] = set()  # tensors of this step
        self.wait_is_open = False  # the next call of synchronize() may belong to the last wait
        self.tensors: MutableSequence[int] = []
        self.enqueued: MutableSequence[int] = []
        # A wait: consecutive calls of synchronize() with no enqueue between them.
        self.positions: MutableSequence[int] = []
        self.handles: MutableSequence[int] = []
        self.begins: MutableSequence[int] = []
        self.ends: MutableSequence[int] = []
        self.blocked: MutableSequence[int] = []

    def enqueue(self, tensor: Any, name: str, process_set: int) -> int:
        """Note a tensor that is known and not yet in this step, and return 0.

        Return the time in ns for any other tensor, which the caller has to `add`.
        """
        now = time.monotonic_ns()
        number, count, dtype, known_set = self.known.get(name, UNKNOWN)
        is_known = tensor.dtype is dtype and process_set == known_set and tensor.numel() == count
        if not is_known or number in self.seen:
            return now
        self.add(number, now)
        return 0

    def know(self, name: str, number: int, count: int, dtype: Any, process_set: int) -> None:
        """Remember the last tensor of this name, for `enqueue`."""
        self.known[name] = (number, count, dtype, process_set)

    def has(self, number: int) -> bool:
        """Whether this step has enqueued the tensor."""
        return number in self.seen

    def add(self, number: int, now: int) -> None:
        """Note an enqueue at `now`, in ns."""
        self.seen.add(number)
        self.tensors.append(number)
        self.enqueued.append(now)

    def wait(self, begin: int, end: int) -> None:
        """Note a call of synchronize(), in ns."""
        if self.wait_is_open and self.positions[-1] == len(self.tensors):
            self.handles[-1] += 1
            self.ends[-1] = end
            self.blocked[-1] += end - begin
            return
        self.positions.append(len(self.tensors))
        self.handles.append(1)
        self.begins.append(begin)
        self.ends.append(end)
        self.blocked.append(end - begin)
        self.wait_is_open = True

    def end_wait(self) -> None:
        """Begin another wait with the next call of synchronize()."""
        self.wait_is_open = False

    def size(self) -> tuple[int, int]:
        """Enqueues and waits."""
        return len(self.tensors), len(self.positions)

    def take(self, enqueues: int, waits: int) -> bytes:
        """Remove so many; return their columns as in the file. The rest is the next step's."""
        narrow, wide = array("I"), array("Q")
        for name, column, count in (
            ("tensors", narrow, enqueues),
            ("positions", narrow, waits),
            ("handles", narrow, waits),
            ("enqueued", wide, enqueues),
            ("begins", wide, waits),
            ("ends", wide, waits),
            ("blocked", wide, waits),
        ):
            values = getattr(self, name)
            column.extend(values[:count])
            setattr(self, name, values[count:])
        self.positions = [position - enqueues for position in self.positions]
        self.seen, self.wait_is_open = set(self.tensors), False
        return narrow.tobytes() + wide.tobytes()


def step_log_class() -> type[StepLog]:
    """The class in C, if this Python can load it."""
    path = os.environ.get("HVSCALE_STEP_LOG")
    # A build without the global interpreter lock ("t") has another ABI.
    if not path or sys.implementation.name != "cpython" or sys.version_info < (3, 10) or "t" in sys.abiflags:
        return StepLog
    loader = ExtensionFileLoader("step_log", path)
    try:
        module = module_from_spec(spec_from_loader("step_log", loader))  # type: ignore[arg-type]
        loader.exec_module(module)
    except ImportError:
        return StepLog
    return module.StepLog  # type: ignore[no-any-return]


class Recorder:
    """The recording of one process."""

    def __init__(self, directory: str, horovod: ModuleType) -> None:
        self.directory, self.horovod = directory, horovod
        self.process, self.size, self.file, self.written = os.getpid(), 0, -1, 0
        self.active, self.lock = True, threading.Lock()
        self.numbers: dict[tuple[object, ...], int] = {}  # of tensors, by name, size and group
        # Its methods need no lock, unless what they return decides what is done next.
        self.log = step_log_class()()
        self.start_ns = 0  # of the current step; 0: none has begun
        self.cuda_step = CudaStep(None)
        self.count = 0
        self.mark_ns = 0  # when an optimizer last ended a step()
        self.mark: tuple[int, int] | None = None  # enqueues and waits of this step before that
        self.unnamed = 0  # tensors without a name since the last mark
        self.cuda = CudaTimes(self._write)
        self.seeks_gpu = True  # no gradient was on a GPU yet
        self.is_timed = False  # the tensors enqueued now get CUDA events
        self.waits = 0  # calls of synchronize() that are still to come, while `is_timed`

    def enqueue(self, tensor: Any, name: str | None, process_set: int) -> None:
        """Note a tensor that Horovod has just enqueued."""
        if not self.active:
            return
        try:
            if self.is_timed:
                with self.lock:
                    self._enqueue_timed(tensor, self._unnamed() if name is None else name, process_set)
                return
            if name is None:
                with self.lock:
                    name = self._unnamed()
            now = self.log.enqueue(tensor, name, process_set)
            if now:
                with self.lock:
                    self._enqueue(now, (tensor,), name, process_set)
        except Exception as error:
            self._stop(error)

    def _enqueue_timed(self, tensor: Any, name: str, process_set: int) -> None:
        now = self.log.enqueue(tensor, name, process_set)
        if now:
            self._enqueue(now, (tensor,), name, process_set)
        else:
            self._time_enqueue((tensor,))

    def _unnamed(self) -> str:
        self.unnamed += 1
        return f"unnamed.{self.unnamed - 1}"

    def enqueue_group(self, tensors: Sequence[Any], name: str | None, process_set: int) -> None:
        """Note tensors that Horovod has just enqueued as one group."""
        now = time.monotonic_ns()
        if not self.active:
            return
        with self.lock:
            try:
                self._enqueue(now, tensors, self._unnamed() if name is None else name, process_set)
            except Exception as error:
                self._stop(error)

    def _enqueue(self, now: int, tensors: Sequence[Any], name: str, process_set: int) -> None:
        """Note `tensors` that are new, are grouped, or begin a step."""
        if self.process != os.getpid():  # a forked child
            self.active = False
            return
        if not self.start_ns:
            self._open()
            self.start_ns = self.mark_ns or now
        for index, tensor in enumerate(tensors):
            count, dtype = tensor.numel(), tensor.dtype
            key = (name, index, count, dtype, len(tensors), process_set)
            number = self.numbers.get(key)
            if number is None:
                number = self._describe(key, tensor)
                # Without new tensors, no step grows this long.
                if self.log.size()[0] >= MOST_ENQUEUES:
                    raise ValueError("no step was recognised: no tensor's name was enqueued twice")
            elif index == 0 and self.log.has(number):
                self._close_step(now)
            self.log.add(number, now)
            if len(tensors) == 1:
                self.log.know(name, number, count, dtype, process_set)
        if self.is_timed or self.seeks_gpu:
            self._time_enqueue(tensors)

    def _time_enqueue(self, tensors: Sequence[Any]) -> None:
        """Record a CUDA event for each of `tensors`, which are the last ones of the step."""
        if self.seeks_gpu:
            self.cuda.device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
            self.seeks_gpu, self.is_timed = self.cuda.device is None, self.cuda.is_timed(self._number)
        if self.is_timed:
            self.cuda_step.pad(self.log.size()[0] - len(tensors))
            self.cuda_step.ready += [self.cuda.event() if self.cuda.is_on_gpu(tensor) else None for tensor in tensors]
            self.waits += 1

    @property
    def _number(self) -> int:
        """The step of the next enqueue or wait: a new one after an optimizer's step()."""
        return self.count + (self.mark is not None and self.mark[0] > 0)

    def wait(self, begin: int, end: int) -> None:
        """Note a call of synchronize(). Nothing counts before the first enqueue."""
        if not self.active or not self.start_ns:
            return
        try:
            self.log.wait(begin, end)
            if self.is_timed:
                with self.lock:
                    self._time_wait()
        except Exception as error:
            self._stop(error)

    def _time_wait(self) -> None:
        """Record a CUDA event after the last wait: until then, a GPU's stream is idle."""
        self.waits = max(0, self.waits - 1)
        if self.waits == 0 and (self.mark is None or not self.mark[0]):
            self.cuda_step.waited = self.cuda.event(self.cuda_step.waited)
        elif self.waits == 0:  # after an optimizer's step(): another optimizer's, or the next step's
            self.cuda.late = self.cuda.event(self.cuda.late)

    def mark_step(self, *_: object) -> None:
        """Note the end of an optimizer's step()."""
        with self.lock:
            self.mark_ns = time.monotonic_ns()
            self.unnamed = self.waits = 0
            if self.start_ns:
                if self.cuda.late is not None:
                    self.cuda_step.waited, self.cuda.late = self.cuda.late, None
                self.log.end_wait()  # later waits are the next step's
                self.mark = self.log.size()
            # It ends a step and begins the next one.
            needed = self.cuda.is_timed(self.count) or self.cuda.is_timed(self.count + 1)
            self.cuda.mark = self.cuda.event() if needed else None
            self.is_timed = self.cuda.is_timed(self._number)

    def _close_step(self, now: int) -> None:
        """Write the step, which ends at the last mark, or now, and begin the next one."""
        size, step = self.log.size(), self.cuda_step
        if step.ready:
            step.pad(size[0])
        if self.mark is not None and self.mark[0]:
            size, end = self.mark, self.mark_ns
        else:
            end = now
            self.cuda.mark, self.waits = None, 0
        self.cuda_step = step.split(size[0])
        step.end = self.cuda_step.start = self.cuda.mark
        self.cuda_step.waited, self.cuda.late = self.cuda.late, None
        columns = self.log.take(*size)
        start, self.start_ns, self.mark = self.start_ns, end, None
        if self.horovod.is_initialized() and self.horovod.size() != self.size:  # a program may have ended Horovod
            raise ValueError("the number of ranks has changed")
        self._write(b"STEP", STEP.pack(self.count, start, end, *size) + columns)
        self.cuda.add(self.count, end - start, step)
        self.count += 1
        # Without a known start, its events would be of no use.
        self.is_timed = self.cuda_step.start is not None and self.cuda.is_timed(self.count)

    def _describe(self, key: tuple[Any, ...], tensor: Any) -> int:
        name, index, count, dtype, group_size, process_set = key
        number = self.numbers[key] = len(self.numbers)
        description = {
            "name": name if group_size == 1 else f"{name}[{index}]",
            "dtype": str(dtype).rpartition(".")[2],
            "bytes": count * tensor.element_size(),
            "group": name if group_size > 1 else None,
            "process_set": process_set,
            "device": tensor.device.type,
        }
        self._write(b"TNSR", json.dumps(description).encode())
        return number

    def _open(self) -> None:
        rank, self.size = self.horovod.rank(), self.horovod.size()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        for suffix in ("", f".{self.process}"):  # the rank's earlier process keeps its file
            path = f"{self.directory}/gradients-{rank:05}{suffix}.hvg"
            try:
                self.file = os.open(path, flags, 0o666)
                break
            except FileExistsError:
                if suffix:
                    raise
        versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("horovod", "torch")}
        header = {
            "version": VERSION,
            "rank": rank,
            "size": self.size,
            "local_size": self.horovod.local_size(),
            **versions,
            "threads": sys.modules["torch"].get_num_threads(),
            "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        }
        self._write(b"HEAD", MAGIC + json.dumps(header).encode())
        atexit.register(self.close)

    def _write(self, kind: bytes, payload: bytes) -> None:
        if self.written + FRAME.size + len(payload) > MOST_BYTES:
            raise ValueError(f"the file has reached {MOST_BYTES >> 20} MiB")
        data = FRAME.pack(kind, len(payload), zlib.crc32(payload)) + payload
        self.written += len(data)
        while data:
            data = data[os.write(self.file, data) :]

    def close(self) -> None:
        """Write the last step if an optimizer ended it, and stop."""
        if not self.active or self.process != os.getpid():
            return
        with self.lock:
            try:
                if self.start_ns and self.mark is not None and self.mark[0]:
                    self._close_step(self.mark_ns)
                self.cuda.write_steps(wait=True)
                self.active = False
            except Exception as error:
                self._stop(error)

    def _stop(self, error: Exception) -> None:
        self.active = False
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        sys.stderr.write(f"hvscale: gradients are no longer recorded: {reason}\n")


def wrap(horovod: ModuleType) -> None:
    """Wrap the all-reduces and synchronize() of the module `horovod.torch.mpi_ops`."""
    recorder = Recorder(os.environ["HVSCALE_GRADIENTS"], horovod)
    for name in ("allreduce_async_", "allreduce_async"):
        function = getattr(horovod, name)
        is_known = tuple(inspect.signature(function).parameters) == ARGUMENTS
        wrapped = _recorded_tensor(function, recorder) if is_known else _recorded(function, recorder, grouped=False)
        setattr(horovod, name, wrapped)
    for name in ("grouped_allreduce_async_", "grouped_allreduce_async"):
        setattr(horovod, name, _recorded(getattr(horovod, name), recorder, grouped=True))
    synchronize, clock = horovod.synchronize, time.monotonic_ns

    @wraps(synchronize)
    def timed(handle: int) -> Any:
        begin = clock()
        try:
            return synchronize(handle)
        finally:
            recorder.wait(begin, clock())

    horovod.synchronize = timed  # type: ignore[attr-defined]
    from torch.optim import optimizer

    # Before PyTorch 2.0, a step ends where a tensor of its name is enqueued again.
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(recorder.mark_step)


def _recorded_tensor(function: Callable[..., int], recorder: Recorder) -> Callable[..., int]:
    """Wrap an all-reduce of one tensor, whose parameters are ARGUMENTS.

    The wrapper names them, because `*args` and `**kwargs` would take 0.5 us.
    """

    @wraps(function)
    def enqueue(
        tensor: Any,
        average: Any = None,
        name: str | None = None,
        op: Any = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Any = recorder.horovod.global_process_set,
    ) -> int:
        handle = function(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
        recorder.enqueue(tensor, name, process_set.process_set_id)
        return handle

    return enqueue


def _recorded(function: Callable[..., int], recorder: Recorder, grouped: bool) -> Callable[..., int]:
    """Wrap an all-reduce, whose arguments are its tensor or tensors, average, name, ..."""
    first = "tensors" if grouped else "tensor"

    @wraps(function)
    def enqueue(*args: Any, **kwargs: Any) -> int:
        handle = function(*args, **kwargs)
        tensors = args[0] if args else kwargs[first]
        name = args[2] if len(args) > 2 else kwargs.get("name")
        process_set = args[6] if len(args) > 6 else kwargs.get("process_set")
        number = getattr(process_set, "process_set_id", 0)
        if grouped:
            recorder.enqueue_group(list(tensors), name, number)
        else:
            recorder.enqueue(tensors, name, number)
        return handle

    return enqueue
