/* Times calls of functions that are known only by address, without Python in between. */
#ifndef HVBENCH_TIME_CALLS_H
#define HVBENCH_TIME_CALLS_H

#include "mpi_abi/mpi_abi.h"

enum { MOST_ARGUMENTS = 9 };

struct call {
    word fn; /* address of a function that returns an int, 0 for success */
    word arity;
    word arguments[MOST_ARGUMENTS];
};

/*
 * Takes `samples` samples. Each calls `sync` (a barrier) and then `repeats` times all of `calls` in
 * order; seconds[i] receives the time of one repeat. With `sync_each_call`, `sync` is called before
 * every repeat and its time is left out. Stops at the first result other than 0 and returns it.
 */
EXPORTED int hvbench_time(const struct call *calls, int number, const struct call *sync, int samples, int repeats,
                          int sync_each_call, double *seconds);

#endif
