/*
 * NCCL's calls in flight, from their start to the end of their kernels. Independent of the version
 * of NCCL's interface.
 */
#ifndef HVPROF_NCCL_CALLS_IN_FLIGHT_H
#define HVPROF_NCCL_CALLS_IN_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

/* A communicator, which NCCL gets as the plug-in's context. */
struct nccl_communicator {
    uint64_t id; /* 0: each call has it */
    uint32_t size; /* 0: unknown */
    bool has_kernel_events;
};

struct nccl_call {
    const char *function;
    const char *datatype;
    const char *algorithm; /* NULL, like `protocol`, for a send or receive */
    const char *protocol;
    uint64_t count;
    uint64_t communicator;
    uint32_t rank;
    int32_t root;
    uint8_t channels; /* 0: no kernel events follow */
    bool channels_unknown; /* an unknown number of kernel events follows */
};

/* Opens the process's profile on the first call. Returns false if that failed. */
bool nccl_open(unsigned interface, int ranks, int rank);

/* Thread-safe. A handle may be old: that of a call whose record has been written has no effect. */
void *nccl_begin(const struct nccl_communicator *communicator, const struct nccl_call *call);
void *nccl_begin_channel(void *call, uint8_t channel, uint64_t device_ns);
void nccl_stamp_channel(void *channel, uint64_t device_ns);
void nccl_end(void *call_or_channel);

/*
 * The handle of an event that is not recorded. Versions 1 to 4 report no calls inside a group that
 * has no handle.
 */
void *nccl_unrecorded(void);

/* Writes the records of calls in flight; NULL: of every communicator. */
void nccl_flush(const struct nccl_communicator *communicator);

#endif
