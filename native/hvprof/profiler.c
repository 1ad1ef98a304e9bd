/* Opens the profile inside MPI_Init, finds the real MPI functions, and marks steps. */
#include "profiler.h"

#include <pthread.h>
#include <stdlib.h>

#include "clocks.h"
#include "common/log.h"
#include "format.h"
#include "mpi_abi/init_chain.h"
#include "operations.h"
#include "recorder.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(fn_ptr) mpi_entry; /* a function of the MPI library that the program calls */
static bool inside_mpi_init; /* all ranks are there, so they can exchange messages */
#ifdef HVPROF_LARGE_COUNTS
static const bool records_large_counts = true;
#else
static const bool records_large_counts = false;
#endif

static void set_up(void)
{
    if (!mpi_abi_load(atomic_load(&mpi_entry))) {
        log_line("the MPI library lacks a function of MPI 3.0 that hvprof needs: the job continues without a profile");
        return;
    }
    int initialized = 0, rank = 0, size = 0, length = 0;
    mpi.initialized(&initialized);
    if (!initialized) {
        log_line("MPI_Init was not called (a session?), so the rank is unknown: the job continues without a profile");
        return;
    }
    mpi.comm_rank(mpi.comm_world, &rank);
    mpi.comm_size(mpi.comm_world, &size);
    static char version[8192]; /* MPI_MAX_LIBRARY_VERSION_STRING: 256 in Open MPI, 8192 in MPICH */
    mpi.get_library_version(version, &length);
    struct clock_offset clock = {.error_ns = HVPROF_UNKNOWN_CLOCK_ERROR};
    if (inside_mpi_init)
        clock = clocks_measure(rank, size);
    bool unseen = !records_large_counts && mpi_find_in_library_of("PMPI_Bcast_c", atomic_load(&mpi_entry)) != NULL;
    hvprof_open(&(struct hvprof_identity){
        .rank = (uint32_t)rank,
        .world_size = (uint32_t)size,
        .flavour = mpi.name,
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
    if (hvprof_is_recording())
        return true;
    pthread_once(&once, set_up);
    return hvprof_is_recording();
}

static fn_ptr find_in_mpi(const char *name, const void *caller)
{
    fn_ptr found = require_fn(mpi_find(name, caller), name);
    atomic_store(&mpi_entry, found);
    return found;
}

fn_ptr profiler_find(_Atomic(fn_ptr) *known, const char *name, const void *caller)
{
    fn_ptr found = find_in_mpi(name, caller), replacement = mpi_find_replacement(name);
    if (replacement != NULL)
        found = replacement;
    atomic_store_explicit(known, found, memory_order_release);
    return found;
}

static void open_profile(const void *caller)
{
    find_in_mpi("PMPI_Init", caller);
    inside_mpi_init = true;
    profiler_ready();
}

const struct init_hooks init_hooks = {.after = open_profile};

/* Marks the start of a step. Does nothing before MPI_Init. */
EXPORTED void hvprof_step(void);
void hvprof_step(void)
{
    if (atomic_load_explicit(&mpi_entry, memory_order_acquire) == NULL || !profiler_ready())
        return;
    hvprof_append(&(struct hvprof_message){
        .start_ns = hvprof_now(),
        .communicator = HVPROF_NO_COMMUNICATOR,
        .root = HVPROF_NO_ROOT,
        .operation = HVPROF_STEP,
    });
}

/*
 * The standard declares "..." after the level. No known library reads further arguments, so they
 * are dropped.
 */
EXPORTED int MPI_Pcontrol(const int level, ...);
int MPI_Pcontrol(const int level, ...)
{
    FIND(Pcontrol)
    if (level == 1)
        hvprof_step();
    return ((int (*)(int, ...))real)(level);
}
