/* Records and totals of calls in a memory-mapped file. Knows nothing of MPI. */
#ifndef HVPROF_RECORDER_H
#define HVPROF_RECORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "mapped_file.h"

struct hvprof_identity {
    uint32_t rank;
    uint32_t world_size;
    const char *flavour;
    const char *library;
    const char *const *operations; /* by code; NULL where a code names nothing */
    unsigned operation_count;
    int64_t clock_offset_ns; /* as in the header */
    uint64_t clock_error_ns;
    uint64_t job;
    uint32_t flags; /* as in the header */
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
    bool only_counted; /* no record of its own: point-to-point calls are too many */
};

/* Opens this process's file in $HVPROF_DIRECTORY. False, after one line on stderr, when that cannot be done. */
bool hvprof_open(const struct hvprof_identity *identity);

/* Writes a communicator into the file's table and returns its index there. One thread at a time. */
uint32_t hvprof_add_communicator(uint64_t identity, uint32_t size, uint32_t rank, uint32_t remote_size, uint32_t flags);

/* Counts one call and appends its record; any number of threads at once. Does nothing in a process without an open file. */
void hvprof_append(const struct hvprof_message *message);

/* One line on stderr, beginning "hvprof: ". */
#define hvprof_say(...) mapped_file_say(&hvprof_file_kind, __VA_ARGS__)
extern const struct mapped_file_kind hvprof_file_kind;

static inline uint64_t hvprof_now(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

#endif
