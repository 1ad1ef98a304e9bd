"""Passes over all messages of a run on all cores, in bounded memory."""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.progress import Progress
from hvscale.profiling.read.events import BLOCK, NO_ORDINAL, Events, EventSource, Part, Reducer, concatenate

PIECE = 1 << 20  # messages that a pass holds at once, for each core
SORTED_BLOCKS = 16  # that are read at once in order of time
Item = TypeVar("Item")
Result = TypeVar("Result")


def workers() -> int:
    """The number of threads: NumPy works outside the interpreter's lock."""
    return len(os.sched_getaffinity(0))


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result | RequestError]]:
    """Yields each item with its result, in order, while other threads work ahead a little.

    A RequestError of `work` is yielded as the result.
    """
    threads = workers()
    running: deque[tuple[Item, Future[Result]]] = deque()

    def oldest() -> tuple[Item, Result | RequestError]:
        item, future = running.popleft()
        try:
            return item, future.result()
        except RequestError as error:
            return item, error

    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            running.append((item, pool.submit(work, item)))
            if len(running) > threads + 1:
                yield oldest()
        while running:
            yield oldest()


def pieces(part: Part, detail: bool) -> Iterator[Events]:
    """The messages of a part, PIECE at a time."""
    for first in range(0, part.slots, PIECE):
        yield part.read(first, min(PIECE, part.slots - first), detail)


def reduce_messages(source: EventSource, *reducers: Reducer[Any]) -> None:
    """Gives every message to the reducers. Raises RequestError if a file can no longer be read."""
    for error in reduce_parts(source, reducers, pieces).values():
        raise error


def reduce_parts(
    source: EventSource, reducers: Sequence[Reducer[Any]], read: Callable[[Any, bool], Iterable[Events]]
) -> dict[int, RequestError]:
    """Gives the pieces of each part, from `read`, to the reducers.

    Returns the errors, by the number of the part. A part with an error contributes nothing.
    """
    for reducer in reducers:
        reducer.begin(source)
    detail = any(reducer.detail for reducer in reducers)

    def reduced(part: Part) -> list[list[Any]]:
        return [[reducer.reduce(part, piece) for reducer in reducers] for piece in read(part, detail)]

    failed = {}
    with Progress("reading", sum(part.slots for part in source.parts)) as progress:
        for number, (part, found) in enumerate(in_order(reduced, source.parts)):
            progress.advance(part.slots)
            if isinstance(found, RequestError):
                failed[number] = found
                continue
            for of_piece in found:
                for reducer, result in zip(reducers, of_piece, strict=True):
                    reducer.add(part, result)
    return failed


def latest(source: EventSource, count: int, ranks: Collection[int] | None = None) -> Events:
    """The `count` messages that started last, in order of time; `ranks` None: of all ranks."""
    parts = source.parts if ranks is None else [part for part in source.parts if part.rank in ranks]
    blocks = np.concatenate([np.empty((0, 4), np.int64), *(part.times() for part in parts)])
    # So many of the blocks that start last have `count` messages: no earlier message is wanted.
    by_start = blocks[np.argsort(-blocks[:, 1])]
    enough = np.searchsorted(np.cumsum(by_start[:, 0]), count)
    since = by_start[enough, 1] if enough < len(by_start) else blocks[:, 1].min(initial=NO_ORDINAL)
    found, held = [], 0
    for piece in _pieces_in(source, lambda times: times[:, 2] >= since, ranks):
        found.append(piece.take(piece.start_ns >= since))
        held += len(found[-1])
        if held > 2 * count:
            found = [_last(concatenate(found, source.operations), count)]
            held = count
    return _last(concatenate(found, source.operations), count)


def _last(events: Events, count: int) -> Events:
    return events.take(np.argsort(events.start_ns, kind="stable")[-count:])


def between(source: EventSource, begin_ns: int, end_ns: int, ranks: Collection[int] | None = None) -> Events:
    """The messages that ran from `begin_ns` to `end_ns`, at least partly; `ranks` None: of all."""
    found = [
        piece.take((piece.start_ns < end_ns) & (piece.start_ns + piece.duration_ns > begin_ns))
        for piece in _pieces_in(source, lambda times: (times[:, 1] < end_ns) & (times[:, 3] > begin_ns), ranks)
    ]
    return concatenate(found, source.operations, source.communicators)


def in_order_of_start(parts: Sequence[Part]) -> Iterator[Events]:
    """The messages of some parts, without details, in order of time; equal starts by part.

    Reads the blocks in the order in which they begin, and holds a message until no block that
    begins before it is left.
    """
    blocks = [(int(times[1]), part, number) for part in parts for number, times in enumerate(part.times())]
    places = sorted(range(len(blocks)), key=lambda place: blocks[place][0])
    held: list[Events] = []
    order = np.empty(0, np.int64)
    for first in range(0, len(places), SORTED_BLOCKS):
        orders = [order]
        for place in places[first : first + SORTED_BLOCKS]:
            _, part, number = blocks[place]
            piece = part.read(number * BLOCK, min(BLOCK, part.slots - number * BLOCK), detail=False)
            held.append(piece)
            orders.append(place * BLOCK + np.arange(len(piece)))
        events, order = concatenate(held, held[0].operations), np.concatenate(orders)
        by_start = np.lexsort((order, events.start_ns))
        final = len(events)
        if first + SORTED_BLOCKS < len(places):
            final = int(np.searchsorted(events.start_ns[by_start], blocks[places[first + SORTED_BLOCKS]][0]))
        yield events.take(by_start[:final])
        held, order = [events.take(by_start[final:])], order[by_start[final:]]


def _pieces_in(
    source: EventSource,
    wanted: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
    ranks: Collection[int] | None = None,
) -> Iterator[Events]:
    """The blocks whose times, as in `Part.times`, are wanted."""
    for part in source.parts if ranks is None else [part for part in source.parts if part.rank in ranks]:
        for block in np.flatnonzero(wanted(part.times())).tolist():
            yield part.read(block * BLOCK, min(BLOCK, part.slots - block * BLOCK), source.detailed)
