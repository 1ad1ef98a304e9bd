/* What a broadcast needs to know of a communicator: messages of its own, the nodes of its members, whether they have the same table. */
#ifndef HVBCAST_CHANNEL_H
#define HVBCAST_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "library.h"
#include "node_memory.h"
#include "table.h"

/* Lives as long as the program's communicator, as an attribute of it. */
struct channel {
    word of; /* the program's communicator, with one group */
    int rank, size;
    bool compared;
    struct rules rules; /* none before, and where its members have different tables */
    bool open; /* what follows is there */
    uint64_t number; /* the same in all members */
    word messages; /* a duplicate that has none of the program's messages */
    word node; /* the members on this node */
    int *leaders; /* for each member, the first one on its node */
    int *nodes; /* the leaders alone, in order */
    int node_count;
    int ranks_per_node; /* the most */
    bool memory_allowed, memory_tried, has_memory; /* the same in all members */
    struct node_memory memory;
    struct channel *next;
};

/* Once in this process, after MPI_Init; `at_end` is called as MPI_Finalize begins. False when MPI does not allow it. */
bool channels_start(void (*at_end)(void));

/* A communicator with this rank alone, and with none of the program's messages. */
word channel_own(void);

/* NULL for two groups, and with MPI's error code in `status`. This and the following are called by one thread for one communicator. */
struct channel *channel_of(word communicator, int *status);

/* Brings the rules when all members have the same table; said where they have not. Collective the first time. Gives MPI's error code. */
int channel_compare(struct channel *channel);

/* Collective the first time. Gives MPI's error code. */
int channel_open(struct channel *channel);

/* Whether the ranks of each node share memory. Collective the first time, on an open channel. */
bool channel_has_memory(struct channel *channel);

#endif
