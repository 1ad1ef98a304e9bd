/*
 * Exact totals and latency histograms by operation and size class. Each thread has its own
 * counters.
 */
#ifndef HVPROF_COUNTERS_H
#define HVPROF_COUNTERS_H

#include <stdint.h>

#include "format.h"

enum { COUNTERS_KNOWN = 256 }; /* a power of two */

/* The counters that one thread has used. All zero except `thread` before the first call. */
struct counters {
    uint16_t thread; /* unique among living threads */
    uint16_t count;
    struct {
        uint64_t key;
        struct hvprof_counter *counter;
    } known[COUNTERS_KNOWN];
};

/* Sets the table in the file, into which all later calls are counted. */
void counters_open(struct hvprof_counter table[HVPROF_COUNTERS]);

/* Counts one call in a communicator of `ranks`. Only one thread at a time for each `own`. */
void counters_add(struct counters *own, uint16_t operation, uint16_t flags, uint32_t ranks, uint64_t bytes,
                  uint64_t duration_ns);

#endif
