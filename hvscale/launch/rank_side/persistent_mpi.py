"""Keeps MPI initialised in a rank while Horovod ends and starts again."""

import atexit
import ctypes
import os

MPI_THREAD_MULTIPLE = 3  # in Open MPI and in the MPICH family; Horovod requests it


def init_mpi(library: str) -> None:
    """Initialise MPI now and finalise it at exit, so that it survives hvd.shutdown().

    Horovod can then be initialised again in the same process. `library`: the path or file name of
    the MPI library that Horovod has loaded. Call it before hvd.init(), so that Horovod's own exit
    handler runs first.
    """
    # Prefer the process's own symbols: a preloaded profiler must see the calls.
    libraries = (ctypes.CDLL(None), ctypes.CDLL(library))
    mpi = next(one for one in libraries if hasattr(one, "MPI_Init_thread"))
    initialised = ctypes.c_int()
    mpi.MPI_Initialized(ctypes.byref(initialised))
    if not initialised:
        mpi.MPI_Init_thread(None, None, MPI_THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        atexit.register(mpi.MPI_Finalize)
        # In a process that the rank forks, it would wait for ever.
        os.register_at_fork(after_in_child=lambda: atexit.unregister(mpi.MPI_Finalize))
