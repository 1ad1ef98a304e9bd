"""Keeps MPI alive across hvd.shutdown(), so that Horovod can be initialised again in the same
process.
"""

import atexit
import ctypes

MPI_THREAD_MULTIPLE = 3  # in Open MPI and in the MPICH family; what Horovod asks for


def init_mpi(soname: str | None) -> None:
    """Initialise MPI before Horovod does, so that hvd.shutdown() does not finalise it; that happens
    at exit.

    `soname`: of the MPI library Horovod has loaded; None: does nothing. Call it before hvd.init(),
    so that Horovod's own exit handler runs first.
    """
    if soname is None:
        return
    # Prefer the process's own symbols: a preloaded profiler must see the calls.
    mpi = next(library for library in (ctypes.CDLL(None), ctypes.CDLL(soname)) if hasattr(library, "MPI_Init_thread"))
    initialised = ctypes.c_int()
    mpi.MPI_Initialized(ctypes.byref(initialised))
    if not initialised:
        mpi.MPI_Init_thread(None, None, MPI_THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        atexit.register(mpi.MPI_Finalize)
