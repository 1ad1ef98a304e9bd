"""MPI that outlives hvd.shutdown(), so that Horovod can be initialised again in the same process."""

import atexit
import ctypes

MPI_THREAD_MULTIPLE = 3  # in Open MPI and in the MPICH family; what Horovod asks for


def hold_mpi(soname: str | None) -> None:
    """Initialise MPI before Horovod does, so that hvd.shutdown() leaves it as it is; it is finalised at the end of the process.

    `soname`: that of the library which Horovod has loaded. To be called before hvd.init(), whose own end at exit is then the earlier one.
    """
    if soname is None:
        return
    # By the process's own names where it can be: a profiler in front of the library is to see the calls.
    mpi = next(library for library in (ctypes.CDLL(None), ctypes.CDLL(soname)) if hasattr(library, "MPI_Init_thread"))
    initialised = ctypes.c_int()
    mpi.MPI_Initialized(ctypes.byref(initialised))
    if not initialised:
        mpi.MPI_Init_thread(None, None, MPI_THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        atexit.register(mpi.MPI_Finalize)
