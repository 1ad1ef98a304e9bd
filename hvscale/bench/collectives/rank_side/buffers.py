"""Buffers for messages in host or GPU memory."""

import mmap
from typing import Any, Protocol

import numpy as np

from hvscale.bench.collectives.elements import Bits


class Buffer(Protocol):
    """Memory for messages. `address`: the first byte, as the library needs it."""

    address: int

    def elements(self, bits_type: Any, start: int, stop: int) -> Bits:
        """A range of elements for this process to write; call `put` afterwards."""

    def put(self, bits_type: Any, start: int, stop: int) -> None:
        """Copy a range written through `elements` to the library's memory."""

    def get(self, bits_type: Any, start: int, stop: int) -> Bits:
        """A range of elements as the library wrote it."""

    def tensor(self, dtype: str, start: int, stop: int) -> Any:
        """The same memory as a PyTorch tensor."""


class HostBuffer:
    """Host memory with ordinary pages, as from malloc. NumPy's allocator uses huge pages, which
    made an all-reduce of 16 MiB a quarter faster.
    """

    def __init__(self, size: int) -> None:
        whole = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.bytes = np.frombuffer(whole, np.uint8, size)
        self.address = int(self.bytes.ctypes.data)

    def elements(self, bits_type: Any, start: int, stop: int) -> Bits:
        size = np.dtype(bits_type).itemsize
        return self.bytes[start * size : stop * size].view(bits_type)

    def put(self, bits_type: Any, start: int, stop: int) -> None:
        pass

    get = elements

    def tensor(self, dtype: str, start: int, stop: int) -> Any:
        import torch

        kind = getattr(torch, dtype)
        return torch.from_numpy(self.bytes[start * kind.itemsize : stop * kind.itemsize]).view(kind)


class CudaBuffer:
    """Memory of this rank's GPU, with a pinned host buffer for `elements` and for staging."""

    def __init__(self, size: int) -> None:
        import torch

        self.device = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.address, self.host_address = int(self.device.data_ptr()), int(self.host.data_ptr())

    def elements(self, bits_type: Any, start: int, stop: int) -> Bits:
        size = np.dtype(bits_type).itemsize
        found: Bits = self.host.numpy()[start * size : stop * size].view(bits_type)
        return found

    def put(self, bits_type: Any, start: int, stop: int) -> None:
        size = np.dtype(bits_type).itemsize
        self.device[start * size : stop * size].copy_(self.host[start * size : stop * size])

    def get(self, bits_type: Any, start: int, stop: int) -> Bits:
        size = np.dtype(bits_type).itemsize
        self.host[start * size : stop * size].copy_(self.device[start * size : stop * size])
        return self.elements(bits_type, start, stop)

    def tensor(self, dtype: str, start: int, stop: int) -> Any:
        import torch

        kind = getattr(torch, dtype)
        return self.device[start * kind.itemsize : stop * kind.itemsize].view(kind)
