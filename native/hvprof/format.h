/*
 * The layout of a profile file, as docs/reference/profile-format.md describes it. A change of
 * meaning raises HVPROF_VERSION.
 */
#ifndef HVPROF_FORMAT_H
#define HVPROF_FORMAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define HVPROF_MAGIC "hvprof\r\n"
#define HVPROF_VERSION 3u
#define HVPROF_OPERATIONS 64
#define HVPROF_COMMUNICATORS 4096
#define HVPROF_COUNTERS 1024
#define HVPROF_LATENCIES 147
#define HVPROF_NO_COMMUNICATOR UINT32_MAX
#define HVPROF_NO_ROOT INT32_MIN
#define HVPROF_BITWISE 1u /* flag of a record: reduced by MPI_BAND, MPI_BOR or MPI_BXOR */
#define HVPROF_LARGE_COUNTS_UNSEEN 1u /* flag of a file: the MPI library has functions with large counts, which are not recorded */
#define HVPROF_OWN 1u /* flag of a communicator: the other members may know it by another identity */
#define HVPROF_SHARED 2u /* flag of a communicator: all communicators of this size that no longer fitted into the table */
#define HVPROF_SEND 23 /* point-to-point operations are counted, not recorded */
#define HVPROF_RECEIVE 24
#define HVPROF_SEND_RECEIVE 25
#define HVPROF_STEP 63 /* not a call: the start of a step */
#define HVPROF_ALL_SIZES 127u /* size class of a counter for calls that found no counter of their own */
#define HVPROF_UNKNOWN_ERROR UINT64_MAX

struct hvprof_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; /* bytes before the first record */
    uint32_t record_bytes;
    uint32_t rank; /* in MPI_COMM_WORLD */
    uint64_t capacity; /* records */
    uint32_t world_size;
    uint32_t pid;
    uint64_t monotonic_ns; /* the two clocks, read together */
    uint64_t realtime_ns;
    uint64_t check; /* over everything before `reserved_records`, this field taken as 0 */
    char host[64];
    char flavour[32];
    char library[256];
    char operations[HVPROF_OPERATIONS][24]; /* a record's operation is an index into these names */
    int64_t clock_offset_ns; /* CLOCK_MONOTONIC plus this: nanoseconds since 1970 by the clock of rank 0 */
    uint64_t clock_error_ns; /* of that; HVPROF_UNKNOWN_ERROR: not measured, the offset is this host's own */
    uint64_t job; /* random, the same in all ranks of a job; 0: unknown */
    uint32_t flags; /* HVPROF_LARGE_COUNTS_UNSEEN */
    unsigned char reserved[4032 - 1980];
    _Atomic uint64_t reserved_records; /* sequence numbers given to threads; in a cache line of its own */
    _Atomic uint64_t stopped_ns; /* CLOCK_MONOTONIC when recording ended for lack of memory; 0: it did not */
    unsigned char padding[48];
};

struct hvprof_communicator {
    uint64_t identity; /* the same on all members */
    uint32_t size; /* of an inter-communicator: of the own group */
    uint32_t rank; /* own */
    uint32_t flags; /* HVPROF_OWN, HVPROF_SHARED */
    uint32_t remote_size; /* of an inter-communicator: of the other group; else 0 */
    uint64_t check; /* over the words before it; an unused entry is all 0 */
};

/*
 * Totals of all calls of one operation and size class by one thread; never overwritten, unlike
 * records.
 */
struct hvprof_counter {
    _Atomic uint64_t key; /* bits 0-5 operation, 6-12 class, 13 bitwise, 15 set, 16-31 thread, 32-63 ranks; 0: not used */
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
    uint64_t buffer_and_thread; /* low 48 bits: address; high 16: number of the thread, from 0 */
    uint32_t communicator; /* index into the table */
    uint32_t ordinal; /* number of this process's collective in the communicator, from 0 */
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

_Static_assert(offsetof(struct hvprof_header, check) == 56 && offsetof(struct hvprof_header, reserved) == 1980, "layout");
_Static_assert(offsetof(struct hvprof_header, reserved_records) == 4032 && sizeof(struct hvprof_header) == 4096, "layout");
_Static_assert(sizeof(struct hvprof_communicator) == 32 && sizeof(struct hvprof_record) == 64, "layout");
_Static_assert(sizeof(struct hvprof_counter) == 152 * 8, "layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian");

#endif
