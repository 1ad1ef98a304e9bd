/* The profile file, byte for byte: docs/profile-format.md. A change of meaning raises HVPROF_VERSION. */
#ifndef HVPROF_FORMAT_H
#define HVPROF_FORMAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define HVPROF_MAGIC "hvprof\r\n"
#define HVPROF_VERSION 1u
#define HVPROF_OPERATIONS 64
#define HVPROF_NO_ROOT INT32_MIN
#define HVPROF_BITWISE 1u /* flag: reduced by MPI_BAND, MPI_BOR or MPI_BXOR */

struct hvprof_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint32_t record_bytes;
    uint32_t rank; /* in MPI_COMM_WORLD */
    uint64_t capacity; /* records */
    uint32_t world_size;
    uint32_t pid;
    uint64_t monotonic_ns; /* the two clocks, read together */
    uint64_t realtime_ns;
    uint64_t check; /* over everything before `recorded`, this field taken as 0 */
    char host[64];
    char flavour[32];
    char library[256];
    char operations[HVPROF_OPERATIONS][24]; /* a record's operation is an index into these names */
    unsigned char reserved[4032 - 1952];
    _Atomic uint64_t recorded; /* in a cache line of its own: every record counts it up */
    unsigned char padding[56];
};

struct hvprof_record {
    _Atomic uint64_t sequence; /* from 1; 0 while empty or being written */
    uint64_t start_ns; /* CLOCK_MONOTONIC */
    uint64_t duration_ns;
    uint64_t bytes;
    uint32_t communicator_size;
    int32_t root;
    uint16_t operation;
    uint16_t flags; /* HVPROF_BITWISE */
    uint32_t thread; /* the kernel's thread id */
    uint64_t reserved;
    uint64_t check; /* over the words before it */
};

_Static_assert(offsetof(struct hvprof_header, check) == 56 && offsetof(struct hvprof_header, reserved) == 1952, "layout");
_Static_assert(offsetof(struct hvprof_header, recorded) == 4032 && sizeof(struct hvprof_header) == 4096, "layout");
_Static_assert(sizeof(struct hvprof_record) == 64, "layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian");

#endif
