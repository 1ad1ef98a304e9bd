/*
 * How hvscale's preloaded libraries share MPI_Init and MPI_Init_thread. Each library defines both
 * (in init_chain.c), runs its hooks and calls the next library in LD_PRELOAD's order. The last one
 * calls the MPI library. Any order works, with libraries of other tools in between.
 */
#ifndef HVSCALE_INIT_CHAIN_H
#define HVSCALE_INIT_CHAIN_H

#include "mpi_abi/mpi_abi.h"

/* Called before and after MPI_Init. `caller` is an address in the program that called it. */
struct init_hooks {
    void (*before)(const void *caller); /* NULL: nothing */
    void (*after)(const void *caller); /* only after success */
};

/* Every library that links init_chain.c defines this. */
extern const struct init_hooks init_hooks;

#endif
