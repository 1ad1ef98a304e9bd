/* Writes records and totals of calls into a memory-mapped file. Independent of MPI. */
#ifndef HVPROF_RECORDER_H
#define HVPROF_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/mapped_file.h"

/* Facts about the process for the file's header (format.h). */
struct hvprof_identity {
    uint32_t rank;
    uint32_t world_size;
    const char *flavour;
    const char *library;
    const char *const *operations; /* by code; NULL for an unused code */
    unsigned operation_count;
    int64_t clock_offset_ns;
    uint64_t clock_error_ns;
    uint64_t job;
    uint32_t flags;
};

struct hvprof_message {
    uint64_t start_ns;
    uint64_t duration_ns;
    uint64_t bytes;
    uint64_t buffer;
    uint32_t communicator;
    uint32_t ordinal;
    int32_t root;
    uint16_t operation;
    uint16_t flags;
    bool only_counted; /* write no record, because there are too many point-to-point calls */
};

/*
 * Opens this process's file in $HVPROF_DIRECTORY and starts recording. Writes one line to stderr if
 * that fails. Must be called only once.
 */
void hvprof_open(const struct hvprof_identity *identity);

/* Read it with hvprof_is_recording. */
extern _Atomic bool hvprof_recording;

/* False before hvprof_open, after it failed, in a forked child, and after recording stopped. */
static inline bool hvprof_is_recording(void)
{
    return atomic_load_explicit(&hvprof_recording, memory_order_acquire);
}

/*
 * Stops recording in this process because memory has run out, and marks the file as incomplete. The
 * job continues. The first call writes one line to stderr.
 */
void hvprof_stop_out_of_memory(void);

/* Adds a communicator to the file's table and returns its index. Only one thread at a time. */
uint32_t hvprof_add_communicator(uint64_t identity, uint32_t size, uint32_t rank, uint32_t remote_size, uint32_t flags);

/* Counts one call and appends its record, if the process is recording. Thread-safe. */
void hvprof_append(const struct hvprof_message *message);

static inline uint64_t hvprof_now(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

#endif
