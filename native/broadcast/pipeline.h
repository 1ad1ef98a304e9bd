/* A broadcast's data on its way through this rank: received in chunks from one rank, handed on to others. */
#ifndef HVBCAST_PIPELINE_H
#define HVBCAST_PIPELINE_H

#include <stdint.h>

#include "library.h"

struct pipeline {
    word communicator;
    int from; /* -1: the data is here */
    const int *to;
    int receivers;
    char *data;
    uint64_t bytes;
    uint64_t chunk;
    int depth; /* chunks that are received, and handed on, at one time */
    void (*arrived)(void *context, const char *chunk, uint64_t bytes); /* NULL: nobody else wants to know */
    void *context;
};

/* Gives MPI's error code; no request is left in either case. */
int pipeline_run(const struct pipeline *pipeline);

/* How many chunks there are, and the bytes of one of them. */
static inline uint64_t chunks_of(uint64_t bytes, uint64_t chunk)
{
    return bytes / chunk + (bytes % chunk != 0);
}

static inline uint64_t bytes_of_chunk(uint64_t bytes, uint64_t chunk, uint64_t number)
{
    uint64_t rest = bytes - number * chunk;
    return rest < chunk ? rest : chunk;
}

#endif
