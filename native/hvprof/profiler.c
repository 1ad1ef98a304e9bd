#include "profiler.h"

#include <pthread.h>
#include <stdlib.h>

#include "clocks.h"
#include "format.h"
#include "operations.h"
#include "recorder.h"

struct library mpi;
static bool ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(function) first_entry;
#ifdef HVPROF_LARGE_COUNTS
static const bool sees_large_counts = true;
#else
static const bool sees_large_counts = false;
#endif
static bool initialising; /* all ranks are in MPI_Init: messages can be exchanged */

static void set_up(void)
{
    if (!library_describe(&mpi, atomic_load(&first_entry))) {
        hvprof_say("the MPI library lacks a function that a profile needs (MPI 3.0 or later has them): the job goes on without a profile");
        return;
    }
    int started = 0, rank = 0, size = 0, length = 0;
    mpi.initialized(&started);
    if (!started) {
        hvprof_say("MPI_Init was not called (a session?), so the rank is unknown: the job goes on without a profile");
        return;
    }
    mpi.comm_rank(mpi.world, &rank);
    mpi.comm_size(mpi.world, &size);
    static char version[8192]; /* MPI_MAX_LIBRARY_VERSION_STRING: 256 in Open MPI, 8192 in MPICH */
    mpi.version(version, &length);
    struct clock_offset clock = {.error_ns = HVPROF_UNKNOWN_ERROR};
    if (initialising)
        clock = clocks_measure(rank, size);
    bool unseen = !sees_large_counts && library_find_beside("PMPI_Bcast_c", atomic_load(&first_entry)) != NULL;
    ready = hvprof_open(&(struct hvprof_identity){
        .rank = (uint32_t)rank,
        .world_size = (uint32_t)size,
        .flavour = mpi.flavour,
        .library = version,
        .operations = operation_names,
        .operation_count = HVPROF_OPERATIONS,
        .clock_offset_ns = clock.offset_ns,
        .clock_error_ns = clock.error_ns,
        .job = clock.job,
        .flags = unseen ? HVPROF_LARGE_COUNTS_UNSEEN : 0,
    });
}

bool profiler_ready(void)
{
    pthread_once(&once, set_up);
    return ready;
}

function profiler_find(_Atomic(function) *known, const char *name, const void *caller)
{
    function found = library_find(name, caller);
    if (found == NULL) {
        hvprof_say("no library in this process has %s: the call cannot be made. Start the job without LD_PRELOAD", name);
        abort();
    }
    atomic_store(&first_entry, found);
    function replacement = library_replacement(name);
    if (replacement != NULL)
        found = replacement;
    atomic_store_explicit(known, found, memory_order_release);
    return found;
}

/* Marks the begin of a step, for programs that know this library; does nothing before MPI_Init. */
__attribute__((visibility("default"))) void hvprof_step(void);
void hvprof_step(void)
{
    if (atomic_load_explicit(&first_entry, memory_order_acquire) == NULL || !profiler_ready())
        return;
    hvprof_append(&(struct hvprof_message){
        .start_ns = hvprof_now(), .communicator = HVPROF_NO_COMMUNICATOR, .root = HVPROF_NO_ROOT, .operation = HVPROF_STEP});
}

WRAPPED(Init, 2)
{
    FIND(Init)
    int status = REAL(2);
    if (status == 0) {
        initialising = true;
        profiler_ready();
    }
    return status;
}

WRAPPED(Init_thread, 4)
{
    FIND(Init_thread)
    int status = REAL(4);
    if (status == 0) {
        initialising = true;
        profiler_ready();
    }
    return status;
}

/* The standard declares it with "..." after the level: further arguments are lost, and no library reads any. */
__attribute__((visibility("default"))) int MPI_Pcontrol(const int level, ...);
int MPI_Pcontrol(const int level, ...)
{
    FIND(Pcontrol)
    if (level == 1)
        hvprof_step();
    return ((int (*)(int, ...))real)(level);
}
