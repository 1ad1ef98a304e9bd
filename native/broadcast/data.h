/* The program's buffer as plain bytes in the order of its type's signature: what ranks with different types agree on. */
#ifndef HVBCAST_DATA_H
#define HVBCAST_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "library.h"

struct data {
    char *bytes;
    bool packed; /* `bytes` is a copy */
    /* The program's: */
    char *buffer;
    int64_t count;
    word type;
    uint64_t element; /* bytes of one element, without holes */
    intptr_t extent;
};

/* Makes a type, to be freed, of so many elements, however many these are. Gives MPI's error code. */
int data_repeat(int64_t count, word type, word *made);

/* Gives MPI's error code. With `filled` the bytes are those of the buffer; `own` is a communicator with this rank alone. */
int data_open(struct data *data, void *buffer, int64_t count, word type, uint64_t element, bool filled, word own);

/* Frees what data_open took; with `changed` the buffer gets the bytes before. */
int data_close(struct data *data, bool changed, word own);

#endif
