/* What a handle of a communicator stands for: an identity that all its members know it by, its size, its calls so far. */
#ifndef HVPROF_COMMUNICATORS_H
#define HVPROF_COMMUNICATORS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "library.h"

struct communicator {
    word handle;
    uint64_t identity;
    int size; /* between two groups: of the own one */
    int rank;
    int remote_size; /* 0 within one group */
    bool own_identity; /* the other members may know another one */
    bool inter;
    uint32_t index; /* in the file */
    _Atomic bool indexed; /* `index` is known */
    _Atomic uint32_t calls;
    struct communicator *next;
};

/* The communicator of a handle that MPI has just accepted. Any number of threads at once. */
struct communicator *communicator_of(word handle);

/* Its index in the file, which gets an entry with the first call. */
uint32_t communicator_index(struct communicator *communicator);

/* Names what a constructor made out of `parent`, 0 for none; `salt` tells constructions apart that may run at once. */
void communicator_made(uint64_t parent, uint32_t salt, word handle);

/* Forgets a handle that was freed: MPI may give it out again. */
void communicator_gone(word handle);

#endif
