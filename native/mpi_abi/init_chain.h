/*
 * How hvscale's preloaded libraries share MPI_Init and MPI_Init_thread: each defines both (in
 * init_chain.c), runs its own hooks and calls the next library in LD_PRELOAD's order. The last one
 * calls the MPI library. Any order works, and a library of someone else's may stand between.
 */
#ifndef HVSCALE_INIT_CHAIN_H
#define HVSCALE_INIT_CHAIN_H

#include "mpi_abi/mpi_abi.h"

/*
 * What a library does around MPI_Init. `caller` is an address in the program that called MPI_Init.
 */
struct init_hooks {
    void (*before)(const void *caller); /* NULL: nothing */
    void (*after)(const void *caller); /* only if MPI_Init succeeded */
};

/* Every library that links init_chain.c defines this. */
extern const struct init_hooks init_hooks;

#endif
