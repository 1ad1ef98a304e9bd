/* Needed by every wrapped MPI function: the real function, and whether calls are recorded. */
#ifndef HVPROF_PROFILER_H
#define HVPROF_PROFILER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "mpi_abi/mpi_abi.h"

/* Fills in `mpi` and opens the profile on the first call. Returns whether calls are recorded. */
bool profiler_ready(void);

/* The bytes of `count` elements of a type that MPI has just accepted. */
static inline uint64_t bytes_of(int64_t count, word type)
{
    long long size = 0;
    /* A program with nothing to send may pass an invalid type. */
    if (count > 0)
        mpi.type_size(type, &size);
    return count > 0 && size > 0 ? (uint64_t)count * (uint64_t)size : 0;
}

/*
 * Finds the real function `name` and stores it in `known`. Aborts if no library has it, because the
 * program's call then cannot be made.
 */
fn_ptr profiler_find(_Atomic(fn_ptr) *known, const char *name, const void *caller);

#define PARAMETERS_1 word a0
#define PARAMETERS_2 PARAMETERS_1, word a1
#define PARAMETERS_3 PARAMETERS_2, word a2
#define PARAMETERS_4 PARAMETERS_3, word a3
#define PARAMETERS_5 PARAMETERS_4, word a4
#define PARAMETERS_6 PARAMETERS_5, word a5
#define PARAMETERS_7 PARAMETERS_6, word a6
#define PARAMETERS_8 PARAMETERS_7, word a7
#define PARAMETERS_9 PARAMETERS_8, word a8
#define PARAMETERS_10 PARAMETERS_9, word a9
#define PARAMETERS_11 PARAMETERS_10, word a10
#define PARAMETERS_12 PARAMETERS_11, word a11
#define ARGUMENTS_1 a0
#define ARGUMENTS_2 ARGUMENTS_1, a1
#define ARGUMENTS_3 ARGUMENTS_2, a2
#define ARGUMENTS_4 ARGUMENTS_3, a3
#define ARGUMENTS_5 ARGUMENTS_4, a4
#define ARGUMENTS_6 ARGUMENTS_5, a5
#define ARGUMENTS_7 ARGUMENTS_6, a6
#define ARGUMENTS_8 ARGUMENTS_7, a7
#define ARGUMENTS_9 ARGUMENTS_8, a8
#define ARGUMENTS_10 ARGUMENTS_9, a9
#define ARGUMENTS_11 ARGUMENTS_10, a10
#define ARGUMENTS_12 ARGUMENTS_11, a11

/*
 * WRAPPED(name, arity) { FIND(name) ... REAL(arity) ... } defines MPI_<name>. FIND sets `real` to
 * the real function, and REAL calls it with the same arguments.
 */
#define WRAPPED(name, arity) \
    EXPORTED int MPI_##name(PARAMETERS_##arity); \
    int MPI_##name(PARAMETERS_##arity)
#define FIND(name) \
    static _Atomic(fn_ptr) known; \
    fn_ptr real = atomic_load_explicit(&known, memory_order_acquire); \
    if (real == NULL) \
        real = profiler_find(&known, "PMPI_" #name, __builtin_return_address(0));
#define REAL(arity) ((int (*)(PARAMETERS_##arity))real)(ARGUMENTS_##arity)

#endif
