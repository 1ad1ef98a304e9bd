/* Writes records and totals of calls into a memory-mapped file. Knows nothing of MPI. */
#ifndef HVPROF_RECORDER_H
#define HVPROF_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/mapped_file.h"

/* Facts about the process, as the file's header holds them (format.h). */
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
    bool only_counted; /* has no record of its own: there are too many point-to-point calls */
};

/*
 * Opens this process's file in $HVPROF_DIRECTORY and starts recording. Writes one line to stderr if
 * that fails. Called once.
 */
void hvprof_open(const struct hvprof_identity *identity);

/* Use hvprof_is_recording. */
extern _Atomic bool hvprof_recording;

/* False before hvprof_open, if that failed, in a forked child, and after hvprof_stop. */
static inline bool hvprof_is_recording(void)
{
    return atomic_load_explicit(&hvprof_recording, memory_order_acquire);
}

/*
 * Ends recording in this process because memory has run out: the job continues, the file keeps what
 * it holds and is marked as incomplete. The first call writes one line to stderr.
 */
void hvprof_stop_without_memory(void);

/* Adds a communicator to the file's table and returns its index. One thread at a time. */
uint32_t hvprof_add_communicator(uint64_t identity, uint32_t size, uint32_t rank, uint32_t remote_size, uint32_t flags);

/*
 * Counts one call and appends its record, if the process is recording. Any number of threads at
 * once.
 */
void hvprof_append(const struct hvprof_message *message);

static inline uint64_t hvprof_now(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

#endif
