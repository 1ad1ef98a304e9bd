/* Memory that the ranks of one node share: one of them puts chunks into it, the others take them out. */
#ifndef HVBCAST_NODE_MEMORY_H
#define HVBCAST_NODE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "library.h"

/* For chunks; small enough to stay in a cache. */
#define NODE_MEMORY_BYTES ((uint64_t)4 << 20)

struct node_memory {
    word progress; /* a communicator whose messages, and all others, move on while this rank waits */
    int progress_rank;
    int rank, size; /* on the node */
    struct shared *shared;
    uint64_t passed; /* chunks so far, the same in all ranks */
    uint64_t chunk, slots; /* how the memory is divided; 0: not yet */
};

/* Where the others find the memory that the node's first rank has made. */
struct node_memory_place {
    uint64_t mark; /* stands in it */
    int pid, file;
};

/* In the node's first rank; `rank`, `size` and `progress` are set by the caller. False when there is none. The file is to be closed when all
 * others have attached it: nothing is left of it when the ranks end, however they do. */
bool node_memory_make(struct node_memory *memory, struct node_memory_place *place);

/* In the others. */
bool node_memory_attach(struct node_memory *memory, const struct node_memory_place *place);

void node_memory_close(struct node_memory *memory);

/* Before a broadcast's first chunk, in all ranks; `gives` in the one that puts them in. */
void node_memory_divide(struct node_memory *memory, uint64_t chunk, int depth, bool gives);

void node_memory_put(struct node_memory *memory, const char *from, uint64_t bytes);

void node_memory_take(struct node_memory *memory, char *to, uint64_t bytes);

#endif
