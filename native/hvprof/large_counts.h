/* The functions with large counts of MPI 4, MPI_<name>_c. A program that looks whether they are there finds these; where its MPI library has none,
 * the call is made by MPI_<name>. */
#ifndef HVPROF_LARGE_COUNTS_H
#define HVPROF_LARGE_COUNTS_H

#include "profiler.h"

_Static_assert(sizeof(word) == sizeof(int64_t), "an argument holds an MPI_Count");

/*
 * What makes arguments those of MPI_<name>, a letter for each: - nothing, it is the same; # it is a count; all others are arrays of counts or
 * displacements, whose elements are int there: p one for each rank that blocks go to or come from, l one for each rank of the own group,
 * i one for each neighbour that this rank receives from, o one for each that it sends to.
 */
enum { NO_ARRAYS = -1 }; /* instead of the arguments that are the communicator and the root */

struct large_function {
    _Atomic(function) real; /* PMPI_<name>_c, or PMPI_<name> */
    _Atomic bool is_small;
};

/* Finds the real function for MPI_<name>_c, as profiler_find does; `name` is PMPI_<name>. */
function large_find(struct large_function *known, const char *name, const void *caller);

/* Calls `small`, a PMPI_<name>, with the arguments of MPI_<name>_c. What had to be copied is freed, or, where MPI needs it until the call completes,
 * handed to `needed`. MPI_ERR_COUNT when something does not fit. */
int large_call_small(function small, const char *letters, const word *arguments, int communicator, int root, void **needed);

#define FIND_LARGE(name) \
    static struct large_function known; \
    function real = atomic_load_explicit(&known.real, memory_order_acquire); \
    if (real == NULL) \
        real = large_find(&known, "PMPI_" #name, __builtin_return_address(0));
#define CALL_LARGE(call_real, needed, letters, communicator, root, ...) \
    (atomic_load_explicit(&known.is_small, memory_order_relaxed) \
         ? large_call_small(real, letters, (const word[]){__VA_ARGS__}, communicator, root, needed) \
         : (call_real))

#endif
