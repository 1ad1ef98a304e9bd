"""What the ranks of all back ends share: operands, the check of results, and timing from Python."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hvscale.bench.collectives.elements import Carried, Dtype, fill, find_wrong
from hvscale.bench.collectives.operations import Blocks, Collective
from hvscale.bench.collectives.rank_side.buffers import Buffer, CudaBuffer, HostBuffer
from hvscale.bench.collectives.request import ALL_ROOTS, Device, FirstWrong

Document = TypeVar("Document")


@dataclass(frozen=True)
class Operands:
    """The arguments of one call on one rank. `count`: elements in a block. In place, the sent
    elements lie in `receive`.

    `root`: a rank, or ALL_ROOTS, which is for timing only.
    """

    collective: Collective
    dtype: Dtype
    count: int
    rank: int
    np: int
    root: int
    in_place: bool
    send: Buffer
    receive: Buffer

    @property
    def roots(self) -> Sequence[int]:
        """The roots of the calls that are timed together.

        With all ranks in turn, in descending order, the last rank of a tree or chain is the next
        root, so no rank can run ahead.
        """
        return range(self.np - 1, -1, -1) if self.root == ALL_ROOTS else [self.root]

    @property
    def source(self) -> Buffer:
        return self.receive if self.in_place else self.send

    @property
    def sent(self) -> tuple[int, int]:
        """The range of elements of `source` that this rank sends."""
        return self._range(self._sends, self.collective.own_block(self.rank) if self.in_place else 0)

    @property
    def received(self) -> tuple[int, int]:
        """The range of elements of `receive` that this rank receives."""
        return self._range(self._expects, 0)

    @property
    def _sends(self) -> Blocks:
        return self.collective.sends(self.rank, self.np, self.root)

    @property
    def _expects(self) -> Blocks:
        return self.collective.expects(self.rank, self.np, self.root) or []

    def _range(self, blocks: Blocks, first: int) -> tuple[int, int]:
        return first * self.count, (first + len(blocks)) * self.count

    def prepare(self) -> None:
        """Fill in what this rank sends. The rest of the receive buffer gets all bits set, a NaN,
        which nobody sends.
        """
        whole = 0, self.collective.largest(self.np) * self.count
        self.receive.elements(np.uint8, 0, whole[1] * self.dtype.bytes).fill(0xFF)
        self.receive.put(self.dtype.carrier, *whole)
        start, stop = self.sent
        target = self.source.elements(self.dtype.carrier, start, stop)
        for number, pattern in enumerate(self._sends):
            fill(target[number * self.count :][: self.count], self.dtype.encode(pattern))
        self.source.put(self.dtype.carrier, start, stop)

    def check(self, found: Carried) -> tuple[int, FirstWrong | None]:
        """Check every element this rank received: the number of wrong ones, and the first of
        them.
        """
        wrong, first_wrong = 0, None
        for number, pattern in enumerate(self._expects):
            expected = self.dtype.encode(pattern)
            block = found[number * self.count :][: self.count]
            count, first = find_wrong(block, expected)
            if first is not None and first_wrong is None:
                first_wrong = FirstWrong(
                    rank=self.rank,
                    element=number * self.count + first,
                    got=self.dtype.decode(block[first]),
                    expected=self.dtype.decode(expected[first % len(expected)]),
                )
            wrong += count
        return wrong, first_wrong


class PreparedCall(ABC):
    """A call that is ready to be repeated."""

    @abstractmethod
    def once(self) -> Carried:
        """Make the call; returns what this rank received."""

    @abstractmethod
    def time(self, samples: int, calls: int, sync_each_call: bool) -> list[float]:
        """The seconds of one call on this rank, for each sample of `calls` calls, with a barrier
        before each sample.

        `sync_each_call`: a barrier before each call instead. With all roots in turn a call is one
        call with each of them, and its seconds are their mean.
        """


class Engine(ABC):
    """A back end in one rank. `library`: the library's name for itself."""

    rank: int
    np: int
    library: str

    def buffer(self, device: Device, size: int) -> Buffer:
        return CudaBuffer(size) if device == "cuda" else HostBuffer(size)

    @abstractmethod
    def prepare_call(self, operands: Operands) -> PreparedCall: ...

    @abstractmethod
    def allgather(self, document: Document) -> list[Document]:
        """The documents of all ranks, by rank."""

    @abstractmethod
    def broadcast_from_root(self, document: Document) -> Document:
        """Rank 0's document."""

    @abstractmethod
    def close(self) -> None: ...


class PythonCall(PreparedCall):
    """A call made from Python. `received` reads the result of `call`; `finish` waits for the GPU;
    `barrier` is across all ranks.
    """

    def __init__(
        self,
        call: Callable[[], Any],
        received: Callable[[Any], Carried],
        barrier: Callable[[], object],
        finish: Callable[[], object],
    ) -> None:
        self.call, self.received, self.barrier, self.finish = call, received, barrier, finish

    def once(self) -> Carried:
        returned = self.call()
        self.finish()
        return self.received(returned)

    def time(self, samples: int, calls: int, sync_each_call: bool) -> list[float]:
        barriers, together = (calls, 1) if sync_each_call else (1, calls)
        found = []
        for _ in range(samples):
            spent = 0.0
            for _ in range(barriers):
                self.barrier()
                self.finish()
                began = time.perf_counter()
                for _ in range(together):
                    self.call()
                self.finish()
                spent += time.perf_counter() - began
            found.append(spent / calls)
        return found
