"""Measured all-reduces: those of profiled runs, and those of `hvscale bench allreduce`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder, RunRecord, is_own_command
from hvscale.core.units import KIB
from hvscale.launch import flavours
from hvscale.launch.placements import PLACEMENTS
from hvscale.launch.placements._link_shaping import bits_per_second
from hvscale.prediction.model.costs import MOST_ENQUEUEING, seconds_to_enqueue
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.profiling.read.events import PHASES, SOURCES, Events, Recording
from hvscale.profiling.read.gradients_file import RankGradients, read_gradients
from hvscale.profiling.read.nccl_file import ENQUEUED, read_nccl_profile
from hvscale.profiling.read.sources.nccl import DATATYPE_BYTES

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
ALGORITHM_VARIABLE = re.compile("allreduce(_intra)?_algorithm$", re.IGNORECASE)
# coll_tuned_allreduce_algorithm, as `ompi_info` lists them.
OPENMPI_NUMBERS = {
    **{"1": "linear", "2": "reduce_broadcast", "3": "recursive_doubling"},
    **{"4": "ring", "5": "segmented_ring", "6": "reduce_scatter_allgather"},
}
NCCL = "nccl"  # the source of its messages
RING = "ring"
SOCKETS = "tcp"  # a transport, as libraries name it
LIBRARY_CHOOSES = ("", "auto", "0", "ignore")
# Up to this size the bytes of an all-reduce hardly matter. An agreement has 8 to 24.
MAX_AGREEMENT_BYTES = KIB
COPYING_PHASES = [PHASES.index(phase) for phase in ("copy_in", "copy_out")]
SETUP_STEPS = 1  # of a run, which set up communication: neither steps nor messages count
MOST_MESSAGES = 4000  # of a run; more make the fit slower and not better


@dataclass(frozen=True)
class Samples:
    """All-reduces on one number of ranks: arrays of one length, and the agreements' seconds.

    `seconds`: from the last rank's call to the last rank's return. `idle_seconds`: from the end of
    the message before. `agreements`: of those that no message follows, if there are any.
    `before_seconds`: from the end of the agreement or message before, in which Horovod copies into
    the fusion buffer; None if unknown. `ranks_per_core`: above 1 where ranks
    share cores. `bytes_per_second`: of a node's link, None if it is not limited. `algorithm`: that
    the run asked for, None for the library's own choice.
    """

    np: int
    nodes: int
    ranks_per_core: float
    bytes: Floats
    seconds: Floats
    idle_seconds: Floats
    agreements: Floats
    bytes_per_second: float | None
    library: str
    algorithm: str | None
    name: str
    before_seconds: Floats | None = None
    total_seconds: float = 0.0
    """Of all messages of the run, of which `seconds` are a sample."""
    total_steps: int | None = None
    """The steps that `total_seconds` covers; None: all of the run."""
    from_training: bool = False
    """The ranks computed while these messages moved."""
    over_nccl: bool = False
    """NCCL carried the messages, from GPU to GPU; MPI the agreements."""
    round_robin: bool = False
    """Ranks that share a core got it one after the other."""
    from_benchmark: bool = False
    """Calls one after the other, in which ranks never sleep."""
    cache_bytes: tuple[int, int] | None = None
    """Of a core's second-level cache, and its share of the third; None if unknown."""
    over_sockets: bool = False
    """The library passes messages through the kernel, also within a node."""
    agrees_in_ring: bool = False
    """Agreements pass from one rank to the next, and the others sleep meanwhile."""
    one_machine: bool = False
    """All nodes are on one machine."""
    enqueueing: float = 0.0
    """The share of the cores' time in which ranks enqueued tensors while these messages moved."""
    fused: Bools | None = None
    """Whether Horovod copied a message into its fusion buffer and out of it; None if unknown."""
    copies: tuple[Floats, Floats] | None = None
    """Bytes of fused messages, and one rank's seconds to copy each into the buffer or out of it
    (their mean); None if unknown.
    """

    @property
    def cores(self) -> int:
        """The cores that all ranks shared."""
        return max(1, round(self.np / self.ranks_per_core))


def run_samples(run: RunFolder) -> Samples | None:
    """The all-reduces of all ranks in a profiled run, after its first step; None without any.

    Raises RequestError if the run cannot be read.
    """
    record, recording = run.read(), read_recording(run)
    events = recording.load()
    if record.np < 2 or not len(events):
        return None
    if recording.source == NCCL:
        return _nccl_samples(run, record, events)
    if recording.ranks_per_event > 1:
        last_start, end, sizes, is_small = _messages_of_rank_0(events)
    elif len(events.ordinal) == len(events):
        last_start, end, sizes, is_small = _collectives(events, record.np)
    else:
        return None
    order = np.argsort(end, kind="stable")
    order = order[last_start[order] >= after_setup(recording.steps)]
    if not len(order):
        return None
    seconds = (end - last_start)[order] / 1e9
    is_data = ~is_small[order]
    # Where ranks share cores, one returns late from an agreement while others already copy for the
    # message that follows: that time belongs to the message.
    is_followed = ~is_data & np.append(is_data[1:], False)
    is_alone = ~is_data & ~is_followed if (~is_data & ~is_followed).any() else ~is_data
    agreements = seconds[is_alone]
    agreed = last_start[order] + (round(1e9 * float(agreements.mean())) if len(agreements) else 0)
    ended = np.where(is_followed, np.minimum(agreed, end[order]), end[order])
    before: NDArray[np.float64] | None = (last_start[order] - np.append(end[order][:1], ended[:-1])) / 1e9
    if recording.ranks_per_event > 1:
        before = None
        if len(agreements):
            # A few small messages of any part of the program: their mean would follow the slowest.
            agreements = np.median(agreements, keepdims=True)
    idle = np.diff(end[order][is_data], prepend=end[order][is_data][:1]) / 1e9 - seconds[is_data]
    chosen = np.random.default_rng(0).permutation(int(is_data.sum()))[:MOST_MESSAGES]
    messages = sizes[order][is_data][chosen]
    gradients = recorded_gradients(run)
    tensors = None if gradients is None else [tensor.bytes for tensor in gradients.tensors]
    total = float(seconds[is_data].sum())
    return Samples(
        **place(record),
        bytes=messages.astype(np.float64),
        fused=None if tensors is None else ~np.isin(messages, tensors),
        copies=_copies_of_rank_0(recording),
        seconds=np.maximum(seconds[is_data][chosen], 1e-7),
        idle_seconds=np.maximum(idle[chosen], 0),
        agreements=agreements,
        name=run.path.name,
        before_seconds=None if before is None else np.maximum(before[is_data][chosen], 0),
        total_seconds=total,
        total_steps=steps_after_setup(recording.steps),
        from_training=not is_replay(record),
        enqueueing=_enqueueing(run, record, gradients, total),
    )


def _copies_of_rank_0(recording: Recording) -> tuple[Floats, Floats] | None:
    """As in Samples, from the phases in Horovod's timeline."""
    pieces = [] if recording.horovod is None else list(recording.horovod())
    if not pieces:
        return None
    names = np.concatenate([np.array(piece.operations)[piece.operation] for piece in pieces])
    sizes = np.concatenate([piece.bytes for piece in pieces])
    copying = np.concatenate([piece.phases_ns for piece in pieces])[:, COPYING_PHASES]
    fused = (names == "allreduce") & (sizes > 0) & (copying > 0).all(axis=1)
    return sizes[fused].astype(np.float64), copying[fused].mean(axis=1) / 1e9


def _enqueueing(run: RunFolder, record: RunRecord, gradients: RankGradients | None, messages: float) -> float:
    """As in Samples, for a replay within a node. `messages`: the seconds of all of them after the
    first step. A training's recorded computation contains its enqueueing.
    """
    log = read_step_log(run)
    if gradients is None or log is None or not is_replay(record) or len(record.nodes) > 1:
        return 0.0
    exposed = float(np.nansum(log.exposed_seconds[SETUP_STEPS:]))
    hidden = max(0.0, 1 - exposed / messages) if messages else 0.0
    spans = [float(np.ptp(step.enqueued)) for step in gradients.steps if len(step.enqueued)]
    span = float(np.median(spans)) if spans else 0.0
    needed = seconds_to_enqueue(crowding(record)) * len(gradients.tensors)
    return hidden * (min(MOST_ENQUEUEING, needed / span) if span else 0.0)


def _nccl_samples(run: RunFolder, record: RunRecord, events: Events) -> Samples | None:
    """As `run_samples`: NCCL's all-reduces by the GPUs' times, and MPI's agreements.

    Raises RequestError if this NCCL does not report when its kernels ran.
    """
    end, durations, sizes = _nccl_allreduces(events, record.np)
    mpi = SOURCES.get("hvprof").read(run, (), None)
    agreements, setup, steps = np.empty(0), 0, None
    if mpi is not None and len(mpi_events := mpi.load()):
        setup, steps = after_setup(mpi.steps), steps_after_setup(mpi.steps)
        start, returned, _, is_small = _collectives(mpi_events, record.np)
        agreements = (returned - start)[is_small & (start >= setup)] / 1e9
    counts = (end - durations >= setup) & (sizes > 0)
    if not counts.any():
        return None
    end, seconds, sizes = end[counts], durations[counts] / 1e9, sizes[counts]
    idle = np.diff(end, prepend=end[:1]) / 1e9 - seconds
    chosen = np.random.default_rng(0).permutation(len(end))[:MOST_MESSAGES]
    return Samples(
        **(place(record) | {"library": NCCL, "algorithm": nccl_algorithm(run)}),
        bytes=sizes[chosen].astype(np.float64),
        seconds=np.maximum(seconds[chosen], 1e-7),
        idle_seconds=np.maximum(idle[chosen], 0),
        agreements=agreements,
        name=run.path.name,
        total_seconds=float(seconds.sum()),
        total_steps=steps,
        from_training=not is_replay(record),
        over_nccl=True,
    )


def _nccl_allreduces(events: Events, ranks: int) -> tuple[NDArray[np.int64], ...]:
    """Last end, nanoseconds and bytes of each all-reduce of all ranks, in their common order.

    The rank that comes last has the shortest time: the others wait for it. This needs no clock that
    nodes share. A ring keeps a rank's last calls, so the calls are counted from the end. Empty
    arrays where the ranks' calls differ in their bytes.
    """
    names = np.array(events.operations)
    is_chosen = (events.communicator_size == ranks) & (names[events.operation] == "allreduce")
    of_rank = [np.flatnonzero(is_chosen & (events.rank == rank)) for rank in range(ranks)]
    count = min(len(one) for one in of_rank)
    ordered = [one[np.argsort(events.start_ns[one], kind="stable")][len(one) - count :] for one in of_rank]
    calls = np.array(ordered, np.int64).reshape(ranks, count)
    sizes, durations = events.bytes[calls], events.duration_ns[calls]
    if not count or (sizes != sizes[0]).any():
        return tuple(np.empty(0, np.int64) for _ in range(3))
    return (events.start_ns[calls] + durations).max(axis=0), durations.min(axis=0), sizes[0]


def nccl_algorithm(run: RunFolder) -> str | None:
    """The algorithm in which the lowest rank's NCCL sent most bytes, if it is one of the model's.

    Raises RequestError if NCCL's calls have no times of the GPU.
    """
    records = read_nccl_profile(min(run.hvprof.glob("nccl-*.hvn"))).records
    records = records[records["function"] == b"AllReduce"]
    if (records["timing"] == ENQUEUED).any():
        raise RequestError(
            f"{run.path}: this release of NCCL does not report to a profiler when its kernels run, so what its messages "
            "cost is unknown: profile with NCCL 2.26 or later"
        )
    sent: Counter[str] = Counter()
    for datatype, width in DATATYPE_BYTES.items():
        of_type = records[records["datatype"] == datatype]
        for name in np.unique(of_type["algorithm"]).tolist():
            elements = int(of_type["count"][of_type["algorithm"] == name].sum())
            sent[name.decode(errors="replace").lower()] += width * elements
    most = sent.most_common(1)
    return RING if most and most[0][0] == RING else None


def after_setup(steps: Mapping[int, NDArray[np.int64]]) -> int:
    """The moment at which the last rank is through with its first steps, in ns; 0 if unknown."""
    marks = [int(marks[SETUP_STEPS]) for marks in steps.values() if len(marks) > SETUP_STEPS]
    return max(marks, default=0)


def steps_after_setup(steps: Mapping[int, NDArray[np.int64]]) -> int | None:
    """The steps that begin from that moment on, of the rank that marked most; None if unknown."""
    return max((len(marks) - SETUP_STEPS for marks in steps.values() if len(marks) > SETUP_STEPS), default=None)


def is_replay(record: RunRecord) -> bool:
    """Whether a run is one of `hvscale replay`."""
    return is_own_command(record.command, "replay")


def recording(run: RunFolder) -> Path:
    """The folder that a replay repeats, and for another run its own."""
    record = run.read()
    return replayed_folder(record.command, record.working_directory) if is_replay(record) else run.path.resolve()


def recorded_gradients(run: RunFolder) -> RankGradients | None:
    """What a rank of the run, or of the recording that it replays, enqueued; None if unknown.

    A message of another size than its tensors' holds several of them.
    """
    path = min(RunFolder(recording(run)).hvprof.glob("gradients-*.hvg"), default=None)
    with suppress(RequestError):
        return None if path is None else read_gradients(path)
    return None


def replayed_folder(command: Sequence[str], working_directory: str) -> Path:
    """The recording that a command `hvscale replay` repeats."""
    words = command[2:]
    # In ranks, each option of `hvscale replay` has a value.
    given = [word for word, before in zip(words, ["", *words], strict=False) if "-" not in (word[:1], before[:1])]
    return Path(working_directory, *given[:1]).resolve()


def have_same_recording(run: RunFolder, other: RunFolder) -> bool:
    """Whether two runs, of which one is a replay, are of one recording."""
    return is_same_folder(recording(run), recording(other))


def is_same_folder(one: Path, another: Path) -> bool:
    """Whether two paths are of one run folder.

    Names decide if a folder does not exist any more, or not on this machine.
    """
    exist = all(RunFolder(path).run_json.exists() for path in (one, another))
    return one == another if exist else one.name == another.name


def undisturbed(samples: list[Samples]) -> list[Samples]:
    """Those of replays and benchmarks, if there are any; else all.

    Computation on the same cores slows the messages of a training. Fitted together, the difference
    would be taken for one of np.
    """
    return [one for one in samples if not one.from_training] or samples


def shows_copies(one: Samples, others: Iterable[Samples]) -> bool:
    """Whether nodes on one machine had no limited link here, and in others, by the same library.

    Few ranks wait for a limited link so long that what they copy meanwhile cannot be seen.
    """
    between_nodes = one.one_machine and one.nodes > 1 and not one.from_training
    limited = any(other.bytes_per_second is not None and other.library == one.library for other in others)
    return between_nodes and one.bytes_per_second is None and limited


def crowding(record: RunRecord) -> float:
    """How many ranks shared a core; 1 where each rank had its own."""
    return max(1.0, float(place(record)["ranks_per_core"]))


def place(record: RunRecord) -> dict[str, Any]:
    """The fields of Samples that run.json knows."""
    shared = PLACEMENTS.get(record.placement).on_this_machine
    nodes = len(record.nodes) or 1
    link = record.placement_settings.get("link")
    return {
        "np": record.np,
        "nodes": nodes,
        "ranks_per_core": record.np / (record.host.cores * (1 if shared else nodes)),
        "bytes_per_second": bits_per_second(str(link)) / 8 if link else None,
        "library": record.measured_library.name,
        "algorithm": asked_algorithm(record),
        "round_robin": record.host.scheduling == "round-robin",
        "cache_bytes": record.host.cache_bytes,
        "over_sockets": record.measured_library.transport == SOCKETS,
        "agrees_in_ring": only_algorithm(record) == RING,
        "one_machine": shared,
    }


def asked_algorithm(record: RunRecord) -> str | None:
    """The algorithm of all-reduce, as --set or the library's variable names it.

    Without a request, the only one of the library; None if it chooses.
    """
    requests = record.launch.get("set", [])
    knobs = [str(request).partition("=")[::2] for request in (requests if isinstance(requests, list) else [])]
    named = [text for knob, text in knobs if knob.strip().replace("-", "_") == "allreduce_algorithm"]
    named += [value for name, value in record.env_asked.items() if ALGORITHM_VARIABLE.search(name)]
    if not named or named[0] in LIBRARY_CHOOSES:
        return only_algorithm(record)
    return algorithm_name(named[0])


def only_algorithm(record: RunRecord) -> str | None:
    """The algorithm of all all-reduces, also of agreements; None if the library has several."""
    flavour = flavours.FLAVOURS.all().get(record.library.flavour)
    return flavour.allreduce_algorithm if flavour else None


def algorithm_name(text: str) -> str:
    """The name of an algorithm that Open MPI's variable may have by number."""
    return OPENMPI_NUMBERS.get(text, text)


def _messages_of_rank_0(events: Events) -> tuple[NDArray[np.int64], ...]:
    """As `_collectives`, from Horovod's timeline.

    It does not record agreements. Its smallest messages take their place: an agreement is an
    all-reduce of a few bytes by the same library. Ranks have just agreed when a message starts, so
    that rank 0's time is close to that of the last rank.
    """
    names = np.array(events.operations)
    chosen = (names[events.operation] == "allreduce") & (events.bytes > 0)
    start, sizes = events.start_ns[chosen], events.bytes[chosen]
    return start, start + events.duration_ns[chosen], sizes, sizes <= MAX_AGREEMENT_BYTES


def _collectives(events: Events, ranks: int) -> tuple[NDArray[np.int64], ...]:
    """Last start, end, bytes and whether bitwise, of each all-reduce of all ranks."""
    names = np.array(events.operations)
    chosen = np.flatnonzero((events.communicator_size == ranks) & (names[events.operation] == "allreduce"))
    chosen = chosen[np.lexsort((events.rank[chosen], events.ordinal[chosen], events.communicator[chosen]))]
    key = np.stack([events.communicator[chosen].astype(np.int64), events.ordinal[chosen].astype(np.int64)])
    is_first = np.append(True, (np.diff(key) != 0).any(axis=0))[: len(chosen)]
    firsts = np.flatnonzero(is_first)
    if not len(firsts):
        return tuple(np.empty(0, np.int64) for _ in range(4))
    whole = np.diff(np.append(firsts, len(chosen))) == ranks
    start = events.start_ns[chosen]
    end = start + events.duration_ns[chosen]
    columns = (
        np.maximum.reduceat(start, firsts),
        np.maximum.reduceat(end, firsts),
        events.bytes[chosen][firsts],
        events.bitwise[chosen][firsts],
    )
    return tuple(column[whole] for column in columns)
