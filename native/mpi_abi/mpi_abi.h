/*
 * One view of every MPI ABI: finds the job's MPI library in the running process, detects its ABI
 * and calls it without its mpi.h. So one build of hvscale works with every MPI library.
 */
#ifndef HVSCALE_MPI_ABI_H
#define HVSCALE_MPI_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

/*
 * An argument as passed in a register or stack slot: a count, an address, or a handle of any ABI.
 * The upper half of an int argument is undefined, so cast it before use.
 */
typedef uintptr_t word;
typedef void (*fn_ptr)(void);

typedef int (*attribute_copy_fn)(word communicator, int key, void *extra, void *value, void *copied, int *keep);
typedef int (*attribute_delete_fn)(word communicator, int key, void *value, void *extra);

/* Large enough for any library's MPI_Status. */
struct any_status {
    uint64_t words[32];
};

struct mpi_abi {
    const char *name; /* "Open MPI", "MPICH" or "MPI ABI" */
    size_t handle_bytes; /* of one element in an array of handles */

    word comm_world, comm_self, comm_null;
    word datatype_null, type_byte;
    word info_null;
    word errors_return;
    word bitwise_ops[3]; /* MPI_BAND, MPI_BOR, MPI_BXOR */

    word in_place;
    int32_t root; /* MPI_ROOT */
    int32_t proc_null;
    int32_t comm_type_shared;
    int err_no_mem; /* only for libraries that may lack the functions with large counts */
    int topo_cart, topo_graph, topo_dist_graph; /* results of MPI_Topo_test */

#define MPI_FUNCTION(field, name, parameters) int(*field) parameters;
#define LARGE_COUNT_FUNCTION MPI_FUNCTION
#include "functions.def"
};

/* The MPI library of this process. Every library that links mpi_abi.c has its own copy. */
extern struct mpi_abi mpi;

/* A handle passed as an argument: MPICH's are ints, whose upper half is undefined. */
static inline word as_handle(word argument)
{
    return mpi.handle_bytes == sizeof(int32_t) ? (uint32_t)argument : argument;
}

/* A handle stored in memory. */
static inline word handle_at(word address)
{
    return mpi.handle_bytes == sizeof(int32_t) ? *(const uint32_t *)address : *(const word *)address;
}

/*
 * Fills in `mpi` from the library that contains `entry`. False if that library lacks a function
 * that functions.def requires.
 */
bool mpi_abi_load(fn_ptr entry);

/*
 * The PMPI function `name` that a call from the object containing `caller` would reach; NULL if no
 * library has it.
 */
fn_ptr mpi_find(const char *name, const void *caller);

/* The function `name` of the library that contains `other`; NULL if it has none. */
fn_ptr mpi_find_in_library_of(const char *name, fn_ptr other);

/*
 * hvscale's own implementation of the PMPI function `name` in another preloaded library, exported
 * as hvscale_<name>; NULL if there is none.
 */
fn_ptr mpi_find_replacement(const char *name);

/*
 * Returns `found`. Aborts after one line on stderr if it is NULL, because the call to `name` cannot
 * be made.
 */
fn_ptr require_fn(fn_ptr found, const char *name);

/* For attributes that a duplicated communicator does not get. */
int mpi_do_not_copy(word communicator, int key, void *extra, void *value, void *copied, int *keep);

/*
 * Lets MPI_Finalize begin with `call`, while MPI still works: it deletes the attributes of
 * MPI_COMM_SELF first. False if MPI refuses.
 */
bool mpi_call_at_end(attribute_delete_fn call);

/*
 * Converts dlsym's result to a function. ISO C has no such cast, but POSIX allows a bitwise copy.
 */
fn_ptr as_function(void *address);

#endif
