/*
 * MPI 4's functions with large counts, MPI_<name>_c. A program that checks for them finds these. If
 * its MPI library has none, MPI_<name> makes the call.
 */
#ifndef HVPROF_LARGE_COUNTS_H
#define HVPROF_LARGE_COUNTS_H

#include "profiler.h"

_Static_assert(sizeof(word) == sizeof(int64_t), "an argument holds an MPI_Count");

/*
 * `kinds` has one letter per argument of MPI_<name>_c:
 *
 *   -  same type as in MPI_<name>
 *   #  a count, which is an int in MPI_<name>
 *
 * All others are arrays of counts or displacements, which are ints in MPI_<name>. One element per
 *
 *   p  rank that this rank exchanges blocks with
 *   l  rank of the own group
 *   i  neighbor that this rank receives from
 *   o  neighbor that this rank sends to
 */
struct large_call {
    const char *kinds;
    const word *arguments;
    int communicator, root; /* their argument numbers, or NO_ARGUMENT */
};
enum { NO_ARGUMENT = -1 };

struct large_function {
    _Atomic(fn_ptr) real; /* PMPI_<name>_c, or PMPI_<name> */
    _Atomic bool is_small;
};

/* profiler_find for MPI_<name>_c; `name` is PMPI_<name>. */
fn_ptr large_find(struct large_function *known, const char *name, const void *caller);

/*
 * Calls `small`, a PMPI_<name>, with the arguments of MPI_<name>_c. `until_complete` is NULL for a
 * blocking call; else it receives memory to free once the call has completed, or NULL. Returns
 * MPI_ERR_COUNT if a value does not fit into an int, and MPI_ERR_NO_MEM if memory runs out.
 */
int large_call_small(fn_ptr small, const struct large_call *call, void **until_complete);

#define FIND_LARGE(name) \
    static struct large_function known; \
    fn_ptr real = atomic_load_explicit(&known.real, memory_order_acquire); \
    if (real == NULL) \
        real = large_find(&known, "PMPI_" #name, __builtin_return_address(0));
#define CALL_LARGE(call_real, until_complete, kinds, communicator, root, ...) \
    (atomic_load_explicit(&known.is_small, memory_order_relaxed) \
         ? large_call_small(real, &(struct large_call){kinds, (const word[]){__VA_ARGS__}, communicator, root}, \
                            until_complete) \
         : (call_real))

#endif
