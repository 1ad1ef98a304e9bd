"""What the ranks of every back end have in common: operands, the check of what came, and timing from Python."""

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
    """One call's arguments on one rank: `count` elements in a block; in place, what is sent lies in `receive`.

    `root`: or ALL_ROOTS, for time alone.
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
        """Of the calls that are timed together. With all ranks in turn the last one of a tree or chain is the next root: none can run ahead."""
        return range(self.np - 1, -1, -1) if self.root == ALL_ROOTS else [self.root]

    @property
    def source(self) -> Buffer:
        return self.receive if self.in_place else self.send

    @property
    def sent(self) -> tuple[int, int]:
        """Elements of `source` that this rank sends: the first, and the one behind the last."""
        return self._range(self._sends, self.collective.own_block(self.rank) if self.in_place else 0)

    @property
    def received(self) -> tuple[int, int]:
        """Elements of `receive` that this rank gets."""
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
        """Write what this rank sends, and into the rest of the receive buffer what nobody sends: bits of ones, which are a NaN."""
        whole = 0, self.collective.largest(self.np) * self.count
        self.receive.elements(np.uint8, 0, whole[1] * self.dtype.bytes).fill(0xFF)
        self.receive.put(self.dtype.carrier, *whole)
        start, stop = self.sent
        target = self.source.elements(self.dtype.carrier, start, stop)
        for number, pattern in enumerate(self._sends):
            fill(target[number * self.count :][: self.count], self.dtype.encode(pattern))
        self.source.put(self.dtype.carrier, start, stop)

    def check(self, found: Carried) -> tuple[int, FirstWrong | None]:
        """Every element of what this rank got: how many are wrong, and the first one."""
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


class Work(ABC):
    """One call, ready to be made again and again."""

    @abstractmethod
    def once(self) -> Carried:
        """Make it, and give what this rank has received."""

    @abstractmethod
    def time(self, samples: int, calls: int, apart: bool) -> list[float]:
        """The seconds of one call in each sample of `calls` calls, on this rank. The ranks meet before each sample; `apart`: before each call.

        With all roots one call is one by each of them, and its seconds are a mean over them."""


class Engine(ABC):
    """A back end in one rank. `library`: as it names itself."""

    rank: int
    np: int
    library: str

    def buffer(self, device: Device, size: int) -> Buffer:
        return CudaBuffer(size) if device == "cuda" else HostBuffer(size)

    @abstractmethod
    def work(self, operands: Operands) -> Work: ...

    @abstractmethod
    def gathered(self, document: Document) -> list[Document]:
        """Of all ranks, on every rank."""

    @abstractmethod
    def decided(self, document: Document) -> Document:
        """What rank 0 says."""

    @abstractmethod
    def close(self) -> None: ...


class PythonWork(Work):
    """A call that Python makes. `call` gives what `received` reads; `finish` waits until a GPU has done it."""

    def __init__(
        self,
        call: Callable[[], Any],
        received: Callable[[Any], Carried],
        meet: Callable[[], object],
        finish: Callable[[], object],
    ) -> None:
        self.call, self.received, self.meet, self.finish = call, received, meet, finish

    def once(self) -> Carried:
        returned = self.call()
        self.finish()
        return self.received(returned)

    def time(self, samples: int, calls: int, apart: bool) -> list[float]:
        meetings, together = (calls, 1) if apart else (1, calls)
        found = []
        for _ in range(samples):
            spent = 0.0
            for _ in range(meetings):
                self.meet()
                self.finish()
                began = time.perf_counter()
                for _ in range(together):
                    self.call()
                self.finish()
                spent += time.perf_counter() - began
            found.append(spent / calls)
        return found
