/* The MPI library in this process: found while the job runs, told apart by its ABI, called without its header. */
#ifndef HVPROF_LIBRARY_H
#define HVPROF_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An argument as it stands in its register or stack slot. The upper half of an int is undefined: cast before reading one. */
typedef uintptr_t word;
typedef void (*function)(void);

struct library {
    const char *flavour;
    word in_place;
    int32_t root; /* MPI_ROOT */
    int32_t proc_null;
    size_t handle_bytes; /* of an element in an array of handles */
    word world;
    word self; /* MPI_COMM_SELF */
    word no_communicator; /* MPI_COMM_NULL */
    word byte; /* MPI_BYTE */
    word no_type; /* MPI_DATATYPE_NULL */
    word no_info; /* MPI_INFO_NULL */
    word errors_return; /* MPI_ERRORS_RETURN */
    int32_t shared; /* MPI_COMM_TYPE_SHARED */
    int cart, graph, dist_graph; /* what MPI_Topo_test answers */
    word bitwise[3]; /* MPI_BAND, MPI_BOR, MPI_BXOR */

    int (*initialized)(int *);
    int (*version)(char *, int *);
    int (*comm_rank)(word, int *);
    int (*comm_size)(word, int *);
    int (*comm_remote_size)(word, int *);
    int (*comm_test_inter)(word, int *);
    int (*type_size)(word, long long *);
    int (*send)(const void *, int, word, int, int, word);
    int (*irecv)(void *, int, word, int, int, word, word *);
    int (*test)(word *, int *, void *);
    int (*wait)(word *, void *);
    int (*cancel)(word *);
    int (*topo_test)(word, int *);
    int (*cartdim_get)(word, int *);
    int (*graph_neighbors_count)(word, int, int *);
    int (*dist_graph_neighbors_count)(word, int *, int *, int *);
    int (*comm_group)(word, word *);
    int (*comm_remote_group)(word, word *);
    int (*group_size)(word, int *);
    int (*group_translate_ranks)(word, int, const int *, word, int *);
    int (*group_free)(word *);
};

/* The library of this process. Each of the libraries that are built with this file has its own. */
extern struct library mpi;

/* A handle as it stands in an argument: MPICH's are ints, the upper half of the word is undefined. */
static inline word as_handle(word argument)
{
    return mpi.handle_bytes == sizeof(int32_t) ? (uint32_t)argument : argument;
}

/* A handle as it stands in memory. */
static inline word handle_at(word address)
{
    return mpi.handle_bytes == sizeof(int32_t) ? *(const uint32_t *)address : *(const word *)address;
}

/* The address of the PMPI function `name` that the object holding `caller` would reach. NULL when no library has it. */
function library_find(const char *name, const void *caller);

/* What the program would have called without the preloaded library that this is part of: the function `name` behind it, or PMPI's where no library
 * that comes next has it. NULL when there is none. */
function library_next(const char *name, const void *caller);

/* The function `name` of the library that holds `other`. NULL when it has none. */
function library_find_beside(const char *name, function other);

/* What a library of hvscale's that replaces the PMPI function `name` makes its calls with; NULL without one. */
function library_replacement(const char *name);

struct library_function {
    const char *name;
    void *field; /* where its address goes; NULL where it is missing */
};

/* Looks for the functions in the library that holds `entry`. False when one of them is missing. */
bool library_functions(function entry, const struct library_function *wanted, size_t count);

/* Fills `library` from the library that holds `entry`. False when a function that the profile needs is missing. */
bool library_describe(struct library *library, function entry);

#endif
