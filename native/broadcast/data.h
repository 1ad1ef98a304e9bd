/*
 * A broadcast buffer as plain bytes in the order of its type's signature, which is the same on
 * ranks with different types.
 */
#ifndef HVBCAST_DATA_H
#define HVBCAST_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "mpi_abi/mpi_abi.h"

struct data {
    char *bytes;
    bool packed; /* `bytes` is a copy */
    /* The program's arguments: */
    char *buffer;
    int64_t count;
    word type;
    uint64_t element; /* bytes of one element, without gaps */
    intptr_t extent;
};

/*
 * Creates a type of `count` elements, where `count` may exceed an int. The caller frees it. Returns
 * MPI's error code.
 */
int data_repeated_type(int64_t count, word type, word *made);

/*
 * Packs the buffer if `filled`, else only allocates memory. `self`: a communicator of this rank
 * alone. Returns MPI's error code.
 */
int data_open(struct data *data, void *buffer, int64_t count, word type, uint64_t element, bool filled,
              word self);

/* Copies the bytes back into the buffer if `changed`, and frees them. */
int data_close(struct data *data, bool changed, word self);

#endif
