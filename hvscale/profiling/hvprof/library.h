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

/* The address of the PMPI function `name` that the object holding `caller` would reach. NULL when no library has it. */
function library_find(const char *name, const void *caller);

/* The function `name` of the library that holds `other`. NULL when it has none. */
function library_find_beside(const char *name, function other);

/* Fills `library` from the library that holds `entry`. False when a function that the profile needs is missing. */
bool library_describe(struct library *library, function entry);

#endif
