/* What a handle of a communicator stands for: an identity that all its members know it by, its size, its calls so far. */
#ifndef HVPROF_COMMUNICATORS_H
#define HVPROF_COMMUNICATORS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "library.h"

struct communicator {
    /* In cache lines of its own: threads count up the calls of different ones at once. */
    _Alignas(128) word handle;
    uint64_t identity;
    int size; /* between two groups: of the own one */
    int rank;
    int remote_size; /* 0 within one group */
    bool own_identity; /* the other members may know another one */
    bool inter;
    uint32_t index; /* in the file */
    _Atomic bool indexed; /* `index` is known */
    _Atomic uint32_t calls;
    _Atomic int neighbours; /* that it receives from in its topology, plus 1; 0: not asked yet */
    struct communicator *next;
};

/* The communicator of a handle that MPI has just accepted. Any number of threads at once. */
struct communicator *communicator_of(word handle);

/* Its index in the file, which gets an entry with the first call. */
uint32_t communicator_index(struct communicator *communicator);

/* The processes that a call among neighbours receives from. */
int communicator_neighbours(struct communicator *communicator);

/* The processes that a call among neighbours in the communicator `handle` receives from, and those that it sends to. */
void neighbours_of(word handle, int *sources, int *destinations);

/* Makes known what a constructor made: its identity, 0 for one of this process's own, and its handle. */
void communicator_enter(uint64_t identity, word handle);

/* Forgets a handle that was freed: MPI may give it out again. */
void communicator_gone(word handle);

#endif
