/*
 * The layout of a profile file, documented in docs/reference/profile-format.md. Increase
 * HVPROF_VERSION with every change.
 */
#ifndef HVPROF_FORMAT_H
#define HVPROF_FORMAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define HVPROF_MAGIC "hvprof\r\n"
#define HVPROF_VERSION 4u
#define HVPROF_OPERATIONS 64
#define HVPROF_COMMUNICATORS 4096
#define HVPROF_COUNTERS 1024
#define HVPROF_LATENCIES 147
#define HVPROF_NO_COMMUNICATOR UINT32_MAX
#define HVPROF_NO_ROOT INT32_MIN
#define HVPROF_BITWISE 1u /* flag of a record: reduced by MPI_BAND, MPI_BOR or MPI_BXOR */
#define HVPROF_LARGE_COUNTS_UNSEEN 1u /* flag of a file: the library's functions with large counts are not recorded */
#define HVPROF_OWN_IDENTITY 1u /* flag of a communicator: other members may have another identity for it */
#define HVPROF_SHARED_ENTRY 2u /* flag of a communicator: all of this size that did not fit into the table */
#define HVPROF_SEND 23 /* point-to-point operations have counters but no records */
#define HVPROF_RECEIVE 24
#define HVPROF_SEND_RECEIVE 25
#define HVPROF_STEP 63 /* the start of a step, not a call; its counter has the time since the last one */
#define HVPROF_ALL_SIZES 127u /* size class of a counter that many sizes share, because no other was left */
#define HVPROF_UNKNOWN_CLOCK_ERROR UINT64_MAX

struct hvprof_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; /* bytes before the first record */
    uint32_t record_bytes;
    uint32_t rank; /* in MPI_COMM_WORLD */
    uint64_t capacity; /* records; 0: calls are only counted */
    uint32_t world_size;
    uint32_t pid;
    uint64_t monotonic_ns; /* the two clocks, read together */
    uint64_t realtime_ns;
    uint64_t check; /* over everything before `reserved_records`, with this field as 0 */
    char host[64];
    char flavour[32];
    char library[256];
    char operations[HVPROF_OPERATIONS][24]; /* a record's operation is an index into these names */
    int64_t clock_offset_ns; /* added to CLOCK_MONOTONIC, gives nanoseconds since 1970 by rank 0's clock */
    uint64_t clock_error_ns; /* of the offset; HVPROF_UNKNOWN_CLOCK_ERROR: the offset is this host's own */
    uint64_t job; /* random, the same in all ranks of a job; 0: unknown */
    uint32_t flags; /* HVPROF_LARGE_COUNTS_UNSEEN */
    unsigned char reserved[4032 - 1980];
    _Atomic uint64_t reserved_records; /* sequence numbers reserved by threads; in a separate cache line */
    _Atomic uint64_t stopped_ns; /* CLOCK_MONOTONIC when recording stopped out of memory; 0: it did not */
    struct hvprof_step_sums {
        _Atomic uint64_t steps; /* that have ended: from one step mark to the next */
        _Atomic uint64_t duration_ns;
        _Atomic uint64_t blocking_ns; /* of blocking collectives in them, by the thread that marked their start */
        _Atomic uint64_t collectives_ns; /* of all collectives that ended in them */
        _Atomic uint64_t collectives_bytes; /* without bitwise reductions */
        _Atomic uint64_t check; /* over the words before it */
    } step_sums;
};

struct hvprof_communicator {
    uint64_t identity; /* the same on all members */
    uint32_t size; /* of an inter-communicator: ranks of the own group */
    uint32_t rank; /* of this process */
    uint32_t flags; /* HVPROF_OWN_IDENTITY, HVPROF_SHARED_ENTRY */
    uint32_t remote_size; /* of an inter-communicator: ranks of the remote group; else 0 */
    uint64_t check; /* over the words before it; an unused entry is all 0 */
};

/*
 * Totals over all calls of one operation and size class by one thread; unlike records, never
 * overwritten. Bits of the key: 0-5 operation, 6-12 size class, 13 bitwise, 14 after the first step
 * mark, 15 always set, 16-31 thread, 32-63 ranks.
 */
struct hvprof_counter {
    _Atomic uint64_t key; /* 0: unused */
    _Atomic uint64_t calls;
    _Atomic uint64_t bytes;
    _Atomic uint64_t duration_ns;
    _Atomic uint64_t latencies[HVPROF_LATENCIES]; /* calls by their duration */
    _Atomic uint64_t check; /* over the words before it, updated with each call */
};

struct hvprof_record {
    _Atomic uint64_t sequence; /* from 1; 0 while empty or being written */
    uint64_t start_ns; /* CLOCK_MONOTONIC */
    uint64_t duration_ns;
    uint64_t bytes;
    uint64_t buffer_and_thread; /* low 48 bits: address; high 16 bits: thread number, from 0 */
    uint32_t communicator; /* index into the table */
    uint32_t ordinal; /* number of the collective in the communicator, counted by this process from 0 */
    int32_t root;
    uint16_t operation;
    uint16_t flags; /* HVPROF_BITWISE */
    uint64_t check; /* over the words before it */
};

struct hvprof_file {
    struct hvprof_header header;
    struct hvprof_communicator communicators[HVPROF_COMMUNICATORS];
    struct hvprof_counter counters[HVPROF_COUNTERS];
    struct hvprof_record records[];
};

_Static_assert(offsetof(struct hvprof_header, check) == 56, "layout");
_Static_assert(offsetof(struct hvprof_header, reserved) == 1980, "layout");
_Static_assert(offsetof(struct hvprof_header, reserved_records) == 4032, "layout");
_Static_assert(offsetof(struct hvprof_header, step_sums) == 4048, "layout");
_Static_assert(sizeof(struct hvprof_header) == 4096, "layout");
_Static_assert(sizeof(struct hvprof_communicator) == 32 && sizeof(struct hvprof_record) == 64, "layout");
_Static_assert(sizeof(struct hvprof_counter) == 152 * 8, "layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian");

#endif
