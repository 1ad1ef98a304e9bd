/*
 * The layout of the file of NCCL calls, documented in docs/reference/nccl-profile.md. Increase
 * NCCL_FILE_VERSION with every change.
 */
#ifndef HVPROF_NCCL_FILE_H
#define HVPROF_NCCL_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_FILE_MAGIC "hvnccl\r\n"
#define NCCL_FILE_VERSION 1u

enum nccl_timing {
    NCCL_ON_DEVICE, /* the GPU's clock, from the first channel's start to the last channel's end */
    NCCL_SEEN_BY_HOST, /* the same, by the clock of NCCL's own thread */
    NCCL_ENQUEUED, /* no kernel event: the time that the host took to enqueue the call */
};

struct nccl_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint32_t record_bytes;
    uint32_t rank; /* in the job */
    uint64_t capacity; /* records */
    uint32_t job_size;
    uint32_t pid;
    uint64_t monotonic_ns; /* the two clocks, read together */
    uint64_t realtime_ns;
    uint64_t check; /* over everything before `recorded`, with this field as 0 */
    char host[64];
    uint32_t interface; /* version of NCCL's profiler interface */
    unsigned char reserved[4032 - 132];
    _Atomic uint64_t recorded; /* in a separate cache line */
    unsigned char padding[56];
};

struct nccl_record {
    _Atomic uint64_t sequence; /* from 1; 0 while empty or being written */
    uint64_t start_ns; /* CLOCK_MONOTONIC */
    uint64_t duration_ns;
    uint64_t count; /* the call's argument */
    uint64_t communicator; /* NCCL's id, the same on all its ranks */
    uint32_t communicator_size; /* 0: unknown */
    uint32_t communicator_rank;
    int32_t root; /* or the other rank of a send or receive */
    uint16_t channels;
    uint16_t timing;
    char function[16]; /* NCCL's own names, truncated */
    char datatype[16];
    char algorithm[16];
    char protocol[16];
    uint64_t check; /* over the words before it */
};

_Static_assert(offsetof(struct nccl_header, check) == 56 && offsetof(struct nccl_header, reserved) == 132, "layout");
_Static_assert(offsetof(struct nccl_header, recorded) == 4032 && sizeof(struct nccl_header) == 4096, "layout");
_Static_assert(offsetof(struct nccl_record, function) == 56 && sizeof(struct nccl_record) == 128, "layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is little-endian");

/*
 * Creates this process's file in $HVPROF_DIRECTORY. Returns false after one line on stderr if that
 * fails.
 */
bool nccl_file_open(uint32_t rank, uint32_t job_size, unsigned interface);

/*
 * Appends a record and sets its sequence and check. Only one thread at a time. Does nothing without
 * an open file.
 */
void nccl_file_append(const struct nccl_record *record);

#endif
