/* Receives a broadcast's data in chunks from one rank and forwards them to others. */
#ifndef HVBCAST_PIPELINE_H
#define HVBCAST_PIPELINE_H

#include <stdint.h>

#include "mpi_abi/mpi_abi.h"

struct pipeline {
    word communicator;
    int from; /* -1: this rank is the root */
    const int *to;
    int receivers;
    char *data;
    uint64_t bytes;
    uint64_t chunk;
    int depth; /* chunks in flight per neighbour */
    void (*arrived)(void *context, const char *chunk, uint64_t bytes); /* called for each chunk; or NULL */
    void *context;
};

/* Returns MPI's error code. Leaves no request open, even after an error. */
int pipeline_run(const struct pipeline *pipeline);

/* The number of chunks, and the bytes of one. */
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
