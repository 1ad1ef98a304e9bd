import subprocess
import sys

import pytest

# Takes and frees a block four times in a thread that starts after the call, as Horovod's does.
PROGRAM = """
import ctypes, resource, sys, threading
from hvscale.core.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
faults = []

def use():
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = libc.malloc(100 << 20)
        libc.memset(block, 1, 100 << 20)
        libc.free(block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=use)
thread.start()
thread.join()
print(min(faults))
"""
PAGES = (100 << 20) // 4096


@pytest.mark.parametrize("kept", [True, False])
def test_a_thread_gets_the_same_memory_again(kept: bool) -> None:
    words = [sys.executable, "-c", PROGRAM, "keep" if kept else "plain"]
    faults = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    # Without it, the kernel clears every page again (or every huge page of 2 MiB).
    assert (faults < PAGES / 512) == kept
