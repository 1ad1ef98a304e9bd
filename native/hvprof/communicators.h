/*
 * Communicators by handle: an identity that is equal on all members, the size, the number of calls.
 */
#ifndef HVPROF_COMMUNICATORS_H
#define HVPROF_COMMUNICATORS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mpi_abi/mpi_abi.h"

struct communicator {
    /* In separate cache lines: threads count the calls of different communicators concurrently. */
    _Alignas(128) word handle;
    uint64_t identity;
    int size; /* of an inter-communicator: ranks of the own group */
    int rank;
    int remote_size; /* of an inter-communicator: ranks of the remote group; else 0 */
    bool own_identity; /* other members may have another identity for it */
    bool inter;
    uint32_t index; /* in the file's table, once `indexed` */
    _Atomic bool indexed;
    _Atomic uint32_t calls;
    _Atomic int neighbours; /* number of neighbours that this rank receives from, plus 1; 0: not yet known */
    struct communicator *next;
};

/* The communicator of a handle that MPI has just accepted; never NULL. Thread-safe. */
struct communicator *communicator_of(word handle);

/* Its index in the file's table, which gets an entry on the first call. */
uint32_t communicator_index(struct communicator *communicator);

/* The number of processes that a neighborhood collective receives from. */
int communicator_neighbours(struct communicator *communicator);

/* The number of processes that a neighborhood collective in `handle` receives from and sends to. */
void neighbours_of(word handle, int *sources, int *destinations);

/*
 * Registers a new communicator. `identity` 0: the members could not agree on one, so this process
 * takes an own one.
 */
void communicator_register(uint64_t identity, word handle);

/* Forgets a handle that is about to be freed, because MPI may reuse it. */
void communicator_forget(word handle);

#endif
