/*
 * Exact totals and latency histograms by operation and size class. Each thread has its own
 * counters.
 */
#ifndef HVPROF_COUNTERS_H
#define HVPROF_COUNTERS_H

#include <stdint.h>

#include "format.h"

enum { COUNTERS_KNOWN_LOG2 = 11, COUNTERS_KNOWN = 1 << COUNTERS_KNOWN_LOG2 };

/* The counters that one thread has used. All zero except `thread` before the first call. */
struct counters {
    uint16_t thread; /* unique among living threads */
    uint16_t count;
    struct {
        uint64_t key;
        struct hvprof_counter *counter;
    } known[COUNTERS_KNOWN];
};

/*
 * Sets the file into which all later calls are counted. Disk space is reserved for its first
 * `available` counters; further ones reserve theirs.
 */
void counters_open(struct hvprof_file *file, uint32_t available);

/* Counts one call in a communicator of `ranks`. Only one thread at a time for each `own`. */
void counters_add(struct counters *own, uint16_t operation, uint16_t flags, uint32_t ranks, uint64_t bytes,
                  uint64_t duration_ns);

/*
 * Counts a step mark that `own`'s thread makes: the time since the process's last mark (0 without
 * one), and the communication in between.
 */
void counters_add_step(struct counters *own, uint64_t now_ns);

#endif
