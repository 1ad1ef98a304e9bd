/* Communicators by handle: an identity that all members agree on, the size, the number of calls. */
#ifndef HVPROF_COMMUNICATORS_H
#define HVPROF_COMMUNICATORS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mpi_abi/mpi_abi.h"

struct communicator {
    /* In cache lines of its own: threads count the calls of different communicators at once. */
    _Alignas(128) word handle;
    uint64_t identity;
    int size; /* of an inter-communicator: of the own group */
    int rank;
    int remote_size; /* of an inter-communicator: of the other group; else 0 */
    bool own_identity; /* the other members may know it by another identity */
    bool inter;
    uint32_t index; /* in the file's table, once `indexed` */
    _Atomic bool indexed;
    _Atomic uint32_t calls;
    _Atomic int neighbours; /* that it receives from in its topology, plus 1; 0: unknown so far */
    struct communicator *next;
};

/*
 * The communicator of a handle that MPI has just accepted; never NULL. Any number of threads at
 * once.
 */
struct communicator *communicator_of(word handle);

/* Its index in the file's table, which gets an entry on the first call. */
uint32_t communicator_index(struct communicator *communicator);

/* The number of processes that a neighborhood collective receives from. */
int communicator_neighbours(struct communicator *communicator);

/* The number of processes that a neighborhood collective in `handle` receives from and sends to. */
void neighbours_of(word handle, int *sources, int *destinations);

/*
 * Registers a new communicator. `identity` 0: the members could not agree on one, this process
 * takes its own.
 */
void communicator_enter(uint64_t identity, word handle);

/* Forgets a handle that is being freed: MPI may reuse it. */
void communicator_gone(word handle);

#endif
