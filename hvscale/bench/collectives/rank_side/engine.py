"""Shared by the ranks of all back ends: operands, checking results, and timing from Python."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hvscale.bench.collectives.elements import Bits, Dtype, fill, find_wrong
from hvscale.bench.collectives.operations import Blocks, Collective
from hvscale.bench.collectives.rank_side.buffers import Buffer, CudaBuffer, HostBuffer
from hvscale.bench.collectives.request import ALL_ROOTS, Device, WrongElement

Document = TypeVar("Document")


@dataclass(frozen=True)
class Operands:
    """The arguments of one call on one rank.

    `count`: elements in a block. `root`: a rank, or ALL_ROOTS (for timing only). In place, the
    elements to send are in `receive`.
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

        ALL_ROOTS gives all ranks in descending order: the last rank of a tree or chain is the next
        root, so no rank can run ahead.
        """
        return range(self.np - 1, -1, -1) if self.root == ALL_ROOTS else [self.root]

    @property
    def source(self) -> Buffer:
        return self.receive if self.in_place else self.send

    @property
    def sent_range(self) -> tuple[int, int]:
        """The range of elements of `source` that this rank sends."""
        return self._range(self._sends, self.collective.own_block(self.rank) if self.in_place else 0)

    @property
    def received_range(self) -> tuple[int, int]:
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
        """Fill in the elements to send. All other bits of the receive buffer are set to 1, which is
        a NaN that no rank sends.
        """
        whole = 0, self.collective.blocks_in_buffer(self.np) * self.count
        self.receive.elements(np.uint8, 0, whole[1] * self.dtype.bytes).fill(0xFF)
        self.receive.put(self.dtype.bits_type, *whole)
        start, stop = self.sent_range
        target = self.source.elements(self.dtype.bits_type, start, stop)
        for number, pattern in enumerate(self._sends):
            fill(target[number * self.count :][: self.count], self.dtype.encode(pattern))
        self.source.put(self.dtype.bits_type, start, stop)

    def check(self, found: Bits) -> tuple[int, WrongElement | None]:
        """The number of wrong elements in `found`, this rank's result, and the first of them."""
        wrong, first_wrong = 0, None
        for number, pattern in enumerate(self._expects):
            expected = self.dtype.encode(pattern)
            block = found[number * self.count :][: self.count]
            count, first = find_wrong(block, expected)
            if first is not None and first_wrong is None:
                first_wrong = WrongElement(
                    rank=self.rank,
                    element=number * self.count + first,
                    got=self.dtype.decode(block[first]),
                    expected=self.dtype.decode(expected[first % len(expected)]),
                )
            wrong += count
        return wrong, first_wrong


class PreparedCall(ABC):
    """A call with its arguments, ready to be repeated."""

    @abstractmethod
    def call_once(self) -> Bits:
        """Make the call and return this rank's result."""

    @abstractmethod
    def time(self, samples: int, calls: int, sync_each_call: bool) -> list[float]:
        """The mean seconds of a call on this rank, one for each sample of `calls` calls.

        A barrier comes before each sample, or before each call with `sync_each_call`. With
        ALL_ROOTS each call is made once with every root, and its seconds are their mean.
        """


class Engine(ABC):
    """A back end in one rank. `library`: the library's version text."""

    rank: int
    np: int
    library: str

    def buffer(self, device: Device, size: int) -> Buffer:
        return CudaBuffer(size) if device == "cuda" else HostBuffer(size)

    @abstractmethod
    def prepare_call(self, operands: Operands) -> PreparedCall: ...

    @abstractmethod
    def allgather(self, document: Document) -> list[Document]:
        """The documents of all ranks, in rank order."""

    @abstractmethod
    def broadcast_from_root(self, document: Document) -> Document:
        """Rank 0's document."""

    @abstractmethod
    def close(self) -> None: ...


class PythonCall(PreparedCall):
    """A call made from Python.

    `result` reads this rank's result from what `call` returned; `synchronize` waits for the GPU;
    `barrier` is over all ranks.
    """

    def __init__(
        self,
        call: Callable[[], Any],
        result: Callable[[Any], Bits],
        barrier: Callable[[], object],
        synchronize: Callable[[], object],
    ) -> None:
        self.call, self.result, self.barrier, self.synchronize = call, result, barrier, synchronize

    def call_once(self) -> Bits:
        returned = self.call()
        self.synchronize()
        return self.result(returned)

    def time(self, samples: int, calls: int, sync_each_call: bool) -> list[float]:
        barriers, calls_per_barrier = (calls, 1) if sync_each_call else (1, calls)
        seconds = []
        for _ in range(samples):
            total = 0.0
            for _ in range(barriers):
                self.barrier()
                self.synchronize()
                started = time.perf_counter()
                for _ in range(calls_per_barrier):
                    self.call()
                self.synchronize()
                total += time.perf_counter() - started
            seconds.append(total / calls)
        return seconds
