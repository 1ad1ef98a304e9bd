/*
 * NCCL's calls in flight, from their start to the end of their kernels. Knows no version of NCCL's
 * interface.
 */
#ifndef HVPROF_NCCL_CALLS_IN_FLIGHT_H
#define HVPROF_NCCL_CALLS_IN_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

/* A communicator, passed to NCCL as its context. */
struct nccl_communicator {
    uint64_t id; /* 0: each call gives it */
    uint32_t size; /* 0: unknown */
    bool has_kernel_events;
};

struct nccl_call {
    const char *function;
    const char *datatype;
    const char *algorithm; /* NULL, like the protocol: a send or receive has none */
    const char *protocol;
    uint64_t count;
    uint64_t communicator;
    uint32_t rank;
    int32_t root;
    uint8_t channels; /* 0: no kernel events will come */
    bool channels_unknown; /* an unknown number of kernel events will come */
};

/* Opens the process's profile on the first call. False if there is none. */
bool nccl_open(unsigned interface, int ranks, int rank);

/* These accept any handle from any thread, even of a call whose record has been written. */
void *nccl_begin(const struct nccl_communicator *communicator, const struct nccl_call *call);
void *nccl_begin_channel(void *call, uint8_t channel, uint64_t device_ns);
void nccl_stamp_channel(void *channel, uint64_t device_ns);
void nccl_end(void *call_or_channel);

/*
 * A handle for an event that is not recorded: versions 1 to 4 send no calls inside a group without
 * one.
 */
void *nccl_nothing(void);

/* Writes the records of calls whose kernels have not ended; NULL: in every communicator. */
void nccl_flush(const struct nccl_communicator *communicator);

#endif
