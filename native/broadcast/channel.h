/*
 * What a broadcast needs to know of a communicator: a private duplicate, its nodes, and whether all
 * members have the same table.
 */
#ifndef HVBCAST_CHANNEL_H
#define HVBCAST_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "mpi_abi/mpi_abi.h"
#include "node_memory.h"
#include "table.h"

/* Stored as an attribute of the program's communicator, and freed with it. */
struct channel {
    word of; /* the program's intra-communicator */
    int rank, size;
    bool compared;
    struct rules rules; /* none before `compared`, or if the tables differ */
    bool open; /* if true, the fields below are valid */
    uint64_t number; /* the same in all members */
    word messages; /* a duplicate of `of`, used only by hvbcast */
    word node; /* the members on this rank's node */
    int *leaders; /* for each member, the first one on its node */
    int *nodes; /* each node's first member, in order */
    int node_count;
    int ranks_per_node; /* the maximum */
    bool memory_allowed, memory_tried, has_memory; /* the same in all members */
    struct node_memory memory;
    struct channel *next;
};

/* Called once, after MPI_Init; `at_end` runs as MPI_Finalize begins. False if MPI refuses. */
bool channels_start(void (*at_end)(void));

/* A communicator of this rank alone, used only by hvbcast. */
word channel_self(void);

/*
 * The channel of a communicator; NULL for an inter-communicator, or with MPI's error code in
 * `status`. For one communicator, only one thread at a time may call this and the functions below.
 */
struct channel *channel_of(word communicator, int *status);

/*
 * Sets the rules if all members have the same table, else warns. The first call is collective.
 * Returns MPI's error code.
 */
int channel_compare(struct channel *channel);

/* Forgets the rules of every channel: the next `channel_compare` is collective again. */
void channels_forget_rules(void);

/* Fills in the fields after `open`. The first call is collective. Returns MPI's error code. */
int channel_open(struct channel *channel);

/*
 * Whether the ranks of each node share memory. The channel must be open. The first call is
 * collective.
 */
bool channel_has_memory(struct channel *channel);

#endif
