"""The GPU of one rank of a replay: it is busy for as long as the recorded GPU computed."""

import ctypes
import os
from types import ModuleType
from typing import Any

import torch

from hvscale.core.errors import RequestError
from hvscale.core.host import machine_identity

# Each has one thread, so that all other multiprocessors are free for messages. `mark` stores the
# GPU's clock; `busy_until` ends so many nanoseconds after a mark, at once where that has passed.
# The driver compiles this text for the GPU.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64

.visible .entry mark(.param .u64 address)
{
    .reg .u64 %to, %now;
    ld.param.u64 %to, [address];
    cvta.to.global.u64 %to, %to;
    mov.u64 %now, %globaltimer;
    st.global.u64 [%to], %now;
    ret;
}

.visible .entry busy_until(.param .u64 address, .param .u64 nanoseconds)
{
    .reg .pred %early;
    .reg .u64 %from, %end, %length, %now;
    ld.param.u64 %from, [address];
    ld.param.u64 %length, [nanoseconds];
    cvta.to.global.u64 %from, %from;
    ld.global.u64 %end, [%from];
    add.u64 %end, %end, %length;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %early, %now, %end;
    @%early bra again;
    ret;
}
"""
STEP_START, LAST_WAIT = 0, 1  # the marks of a step
# With one of them set, NCCL lets ranks share a GPU.
SHARING_VARIABLES = ("NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE")


class GpuStream:
    """Keeps the current stream of PyTorch busy until moments that follow a mark.

    Raises RequestError when the driver refuses the kernels.
    """

    def __init__(self) -> None:
        self.marks = torch.zeros(2, dtype=torch.int64, device="cuda")
        self.driver = ctypes.CDLL("libcuda.so.1")
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        self.kernels: dict[str, ctypes.c_void_p] = {}
        for name in ("mark", "busy_until"):
            function = self.kernels[name] = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())

    def mark(self, mark: int) -> None:
        """Note when the stream gets here, as STEP_START or LAST_WAIT."""
        self._launch("mark", self._address(mark))

    def busy_until(self, mark: int, seconds: float) -> None:
        """Keep the stream busy until so many seconds after a mark; the host does not wait."""
        self._launch("busy_until", self._address(mark), round(1e9 * seconds))

    def _address(self, mark: int) -> int:
        return self.marks.data_ptr() + mark * self.marks.element_size()

    def _launch(self, name: str, *values: int) -> None:
        numbers = [ctypes.c_uint64(value) for value in values]
        arguments = (ctypes.c_void_p * len(numbers))(*[ctypes.addressof(number) for number in numbers])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        one_thread = [ctypes.c_uint(1)] * 6  # blocks and threads in three dimensions
        no_shared_memory = ctypes.c_uint(0)
        self._call("cuLaunchKernel", self.kernels[name], *one_thread, no_shared_memory, stream, arguments, None)

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.driver, function)(*arguments)
        if status:
            raise RequestError(
                f"cannot keep the GPU busy as the recorded one was: {function} failed with CUDA error {status}. "
                "To replay from host memory, hide the GPUs: --env CUDA_VISIBLE_DEVICES="
            )


def choose_gpu(hvd: ModuleType) -> str | None:
    """Make a GPU of the host this rank's, round-robin; return why a rank has none. Collective."""
    reason, gpu = _why_no_gpu(hvd), None
    if reason is None:
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        gpu = (machine_identity(), str(getattr(properties, "uuid", torch.cuda.current_device())))
    every = hvd.allgather_object((reason, gpu), name="hvscale.replay.gpu")
    missing = [f"rank {rank}: {why}" for rank, (why, _) in enumerate(every) if why]
    if missing:
        return missing[0]
    gpus = len({gpu for _, gpu in every})
    may_share = not hvd.nccl_built() or any(name in os.environ for name in SHARING_VARIABLES)
    if gpus < len(every) and not may_share:
        return f"NCCL needs a GPU for each rank, and {len(every)} ranks have {gpus}"
    return None


def _why_no_gpu(hvd: ModuleType) -> str | None:
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    if not hvd.cuda_built():
        return "this Horovod is built without CUDA"
    return None
