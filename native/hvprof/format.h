/* The profile file, byte for byte: docs/reference/profile-format.md. A change of meaning raises HVPROF_VERSION. */
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
#define HVPROF_LARGE_COUNTS_UNSEEN 1u /* flag of a file: calls of the MPI library's functions with large counts are not recorded */
#define HVPROF_OWN 1u /* flag of a communicator: its identity is this process's own, the other members know another */
#define HVPROF_SHARED 2u /* flag of a communicator: the table is full, all later ones of this size share the entry */
#define HVPROF_SEND 23 /* operations that are counted, not recorded */
#define HVPROF_RECEIVE 24
#define HVPROF_SEND_RECEIVE 25
#define HVPROF_STEP 63 /* operation: not a call, the begin of a step */
#define HVPROF_ALL_SIZES 127u /* class of a counter that holds what found no counter of its own */
#define HVPROF_UNKNOWN_ERROR UINT64_MAX

struct hvprof_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; /* all before the first record */
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
    uint64_t job; /* the same in all ranks that were initialised together, another in every job; 0: not known */
    uint32_t flags; /* HVPROF_LARGE_COUNTS_UNSEEN */
    unsigned char reserved[4032 - 1980];
    _Atomic uint64_t reserved_records; /* sequence numbers handed out to threads; in a cache line of its own */
    unsigned char padding[56];
};

struct hvprof_communicator {
    uint64_t identity; /* the same on all members */
    uint32_t size; /* between two groups: of the own one */
    uint32_t rank; /* own */
    uint32_t flags; /* HVPROF_OWN, HVPROF_SHARED */
    uint32_t remote_size; /* ranks of the other group; 0 within one group */
    uint64_t check; /* over the words before it; an unused entry is all 0 */
};

/* All calls of one operation and size class by one thread: it is never full and never overwritten. */
struct hvprof_counter {
    _Atomic uint64_t key; /* bits 0-5 operation, 6-12 class, 13 bitwise, 15 set, 16-31 thread, 32-63 ranks; 0: not used */
    _Atomic uint64_t calls;
    _Atomic uint64_t bytes;
    _Atomic uint64_t duration_ns;
    _Atomic uint64_t latencies[HVPROF_LATENCIES]; /* calls by their duration */
    _Atomic uint64_t check; /* over the words before it, kept up with each call */
};

struct hvprof_record {
    _Atomic uint64_t sequence; /* from 1; 0 while empty or being written */
    uint64_t start_ns; /* CLOCK_MONOTONIC */
    uint64_t duration_ns;
    uint64_t bytes;
    uint64_t buffer_and_thread; /* 48 bits of address; above, this process's threads counted from 0, modulo 65536 */
    uint32_t communicator; /* index into the table */
    uint32_t ordinal; /* this process's n-th collective there, from 0 */
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
