/* The functions of MPI that a broadcast is made of, by their PMPI names: a profiler counts the program's calls and none of these. */
#ifndef HVBCAST_CALLS_H
#define HVBCAST_CALLS_H

#include <stdint.h>

#include "library.h"

typedef int (*copies_attribute)(word communicator, int key, void *extra, void *value, void *copied, int *keep);
typedef int (*ends_attribute)(word communicator, int key, void *value, void *extra);

struct calls {
    int (*isend)(const void *, int, word, int, int, word, word *);
    int (*iprobe)(int, int, word, int *, void *);
    int (*request_free)(word *);
    int (*sendrecv)(const void *, int, word, int, int, void *, int, word, int, int, word, void *);
    int (*allgather)(const void *, int, word, void *, int, word, word);
    int (*pack)(const void *, int, word, void *, int, int *, word);
    int (*unpack)(const void *, int, int *, void *, int, word, word);
    int (*type_get_extent)(word, intptr_t *, intptr_t *);
    int (*type_get_envelope)(word, int *, int *, int *, int *);
    int (*type_get_contents)(word, int, int, int, int *, intptr_t *, void *);
    int (*type_contiguous)(int, word, word *);
    int (*type_create_struct)(int, const int *, const intptr_t *, const void *, word *);
    int (*type_commit)(word *);
    int (*type_free)(word *);
    int (*comm_dup)(word, word *);
    int (*comm_split_type)(word, int, int, word, word *);
    int (*comm_free)(word *);
    int (*comm_set_errhandler)(word, word);
    int (*comm_call_errhandler)(word, int);
    int (*comm_create_keyval)(copies_attribute, ends_attribute, int *, void *);
    int (*comm_get_attr)(word, int, void *, int *);
    int (*comm_set_attr)(word, int, void *);
    int (*finalized)(int *);

    /* With large counts; NULL in a library without these. */
    int (*bcast_c)(word, word, word, word, word);
    int (*type_get_envelope_c)(word, int64_t *, int64_t *, int64_t *, int64_t *, int *);
    int (*type_get_contents_c)(word, int64_t, int64_t, int64_t, int64_t, int *, intptr_t *, int64_t *, void *);
};

extern struct calls calls;

/* A place for any library's MPI_Status. */
struct any_status {
    uint64_t words[32];
};

/* `found`, or the end of the process where that is NULL: no library has `name`. */
function needed(function found, const char *name);

/* Fills `mpi` and `calls` from the library that holds `entry`. False when a needed function is missing. */
bool calls_find(function entry);

#endif
