/* Times calls of functions that are known only by address, without Python overhead. */
#ifndef HVBENCH_TIME_CALLS_H
#define HVBENCH_TIME_CALLS_H

#include "mpi_abi/mpi_abi.h"

enum { MAX_ARGUMENTS = 9 };

struct call {
    word fn; /* address of a function that returns an int, 0 for success */
    word arity;
    word arguments[MAX_ARGUMENTS];
};

/*
 * Takes `samples` samples. Each sample calls `sync` (a barrier), then all of `calls` in order,
 * `repeats` times. seconds[i] receives the mean time of a repeat. With `sync_each_call`, `sync`
 * runs before every repeat, and its time is excluded. Stops at the first result other than 0 and
 * returns it.
 */
EXPORTED int hvbench_time(const struct call *calls, int number, const struct call *sync, int samples, int repeats,
                          int sync_each_call, double *seconds);

#endif
