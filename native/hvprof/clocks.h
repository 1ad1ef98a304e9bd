/* Measures the offset of this rank's clock from rank 0's, and gives the job a number. */
#ifndef HVPROF_CLOCKS_H
#define HVPROF_CLOCKS_H

#include <stdint.h>

struct clock_offset {
    int64_t offset_ns; /* added to CLOCK_MONOTONIC, gives nanoseconds since 1970 by rank 0's clock */
    uint64_t error_ns; /* HVPROF_UNKNOWN_CLOCK_ERROR if not measured */
    uint64_t job; /* a random number that rank 0 sent to all; 0: unknown */
};

/*
 * Exchanges messages between ranks, each with one partner at a time. All ranks must call it, with
 * no other message in flight.
 */
struct clock_offset clocks_measure(int rank, int size);

#endif
