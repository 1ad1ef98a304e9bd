/* Measures how far this host's clock is from rank 0's, and gives the job a number. */
#ifndef HVPROF_CLOCKS_H
#define HVPROF_CLOCKS_H

#include <stdint.h>

struct clock_offset {
    int64_t offset_ns; /* CLOCK_MONOTONIC plus this: nanoseconds since 1970 by the clock of rank 0 */
    uint64_t error_ns; /* HVPROF_UNKNOWN_ERROR if not measured */
    uint64_t job; /* a random number that rank 0 sent to all; 0: unknown */
};

/*
 * Exchanges messages between rank 0 and each other rank: all ranks must call it, while no other
 * message is under way.
 */
struct clock_offset clocks_measure(int rank, int size);

#endif
