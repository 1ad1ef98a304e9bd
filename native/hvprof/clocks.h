/* How far this host's clock is from that of rank 0, and which job this is. */
#ifndef HVPROF_CLOCKS_H
#define HVPROF_CLOCKS_H

#include <stdint.h>

struct clock_offset {
    int64_t offset_ns; /* CLOCK_MONOTONIC plus this: nanoseconds since 1970 by the clock of rank 0 */
    uint64_t error_ns; /* HVPROF_UNKNOWN_ERROR: not measured */
    uint64_t job; /* a random number that rank 0 gave to all; 0: not known */
};

/* Measures it with messages between rank 0 and each other rank: all ranks must call it, and no other message be on its way. */
struct clock_offset clocks_measure(int rank, int size);

#endif
