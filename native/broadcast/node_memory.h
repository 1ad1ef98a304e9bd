/* Memory shared by the ranks of a node: one rank writes chunks, the others copy them. */
#ifndef HVBCAST_NODE_MEMORY_H
#define HVBCAST_NODE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "mpi_abi/mpi_abi.h"

/* Space for chunks, small enough to stay in a cache. */
#define NODE_MEMORY_BYTES ((uint64_t)4 << 20)

struct node_memory {
    word progress; /* a communicator to poll while this rank waits, so that MPI makes progress */
    int progress_rank;
    int rank, size; /* on the node */
    struct shared *shared;
    uint64_t passed; /* chunks written or copied by this rank so far */
    uint64_t chunk, slots; /* current slot size and number of slots; 0: not set yet */
};

/* Where the other ranks find the memory that the node's first rank created. */
struct node_memory_place {
    uint64_t mark; /* a unique number, also stored in the memory */
    int pid, file;
};

/*
 * Called by the node's first rank, with `rank`, `size` and `progress` set. False if no memory can
 * be shared. The caller closes the file once all others have attached it. Then the memory
 * disappears with the ranks, however they end.
 */
bool node_memory_create(struct node_memory *memory, struct node_memory_place *place);

/* Called by the other ranks. */
bool node_memory_attach(struct node_memory *memory, const struct node_memory_place *place);

void node_memory_close(struct node_memory *memory);

/*
 * Sets the slot size. Called by all ranks before the first chunk of a broadcast. `is_source`: this
 * rank writes the chunks.
 */
void node_memory_divide(struct node_memory *memory, uint64_t chunk, int depth, bool is_source);

void node_memory_put(struct node_memory *memory, const char *from, uint64_t bytes);

void node_memory_take(struct node_memory *memory, char *to, uint64_t bytes);

#endif
