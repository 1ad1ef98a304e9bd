/*
 * The profiler plug-in that NCCL loads: translates the events of each version of NCCL's interface
 * into calls of calls_in_flight.h.
 */
#include <stdlib.h>

#include "abi.h"
#include "calls_in_flight.h"
#include "common/log.h"

#define EXPORTED __attribute__((visibility("default")))
#define NAME "hvprof"

static int init(unsigned interface, void **context, int *mask, uint64_t id, int ranks, int rank)
{
    *context = NULL;
    if (!nccl_open(interface, ranks, rank)) {
        *mask = 0;
        return NCCL_SUCCESS;
    }
    struct nccl_communicator *communicator = malloc(sizeof *communicator);
    if (communicator == NULL) {
        log_line("out of memory: calls in one NCCL communicator are not recorded, and the job continues");
        return NCCL_SUCCESS;
    }
    *communicator = (struct nccl_communicator){.id = id, .size = (uint32_t)ranks, .has_kernel_events = interface >= 3};
    *context = communicator;
    /* At once: all communicators share the mask, and other threads make calls meanwhile. */
    *mask = NCCL_COLLECTIVE | NCCL_POINT_TO_POINT | (interface >= 3 ? NCCL_KERNEL_CHANNEL : 0) |
        (interface >= 6 ? NCCL_COPY_ENGINE_COLLECTIVE : 0);
    return NCCL_SUCCESS;
}

static int finalize(void *context)
{
    nccl_flush(context);
    free(context);
    return NCCL_SUCCESS;
}

static int stop(void *handle)
{
    nccl_end(handle);
    return NCCL_SUCCESS;
}

/* Before version 4 no state event belongs to a kernel. */
static int ignore_state(void *handle, int state, union nccl_state_arguments *arguments)
{
    (void)handle, (void)state, (void)arguments;
    return NCCL_SUCCESS;
}

static int record_state(void *handle, int state, union nccl_state_arguments *arguments)
{
    if (state == NCCL_KERNEL_CHANNEL_STOP && arguments != NULL)
        nccl_stamp_channel(handle, arguments->kernel.timer);
    return NCCL_SUCCESS;
}

/* Version 1 reports numbers, later versions report names. */
#define NAME_OF(names, number) ((number) < sizeof(names) / sizeof *(names) ? (names)[number] : "")
static const char *const functions_v1[] = {
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv",
};
static const char *const datatypes_v1[] = {
    "ncclInt8",   "ncclUint8",   "ncclInt32",   "ncclUint32",  "ncclInt64",
    "ncclUint64", "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16",
};
static const char *const algorithms_v1[] = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT",
};
static const char *const protocols_v1[] = {"LL", "LL128", "SIMPLE"};

static int start_v1(void *context, void **handle, struct nccl_event_v1 *event)
{
    *handle = nccl_unrecorded();
    if (context != NULL && event->type == NCCL_COLLECTIVE)
        *handle = nccl_begin(context, &(struct nccl_call){
            .function = NAME_OF(functions_v1, event->collective.function),
            .datatype = NAME_OF(datatypes_v1, event->collective.datatype),
            .algorithm = NAME_OF(algorithms_v1, event->collective.algorithm),
            .protocol = NAME_OF(protocols_v1, event->collective.protocol),
            .count = event->collective.count,
            .communicator = event->collective.communicator,
            .rank = (uint32_t)event->rank,
            .root = event->collective.root,
            .channels = event->collective.channels,
        });
    if (context != NULL && event->type == NCCL_POINT_TO_POINT)
        *handle = nccl_begin(context, &(struct nccl_call){
            .function = NAME_OF(functions_v1, event->point_to_point.function),
            .datatype = NAME_OF(datatypes_v1, event->point_to_point.datatype),
            .count = event->point_to_point.count,
            .communicator = event->point_to_point.communicator,
            .rank = (uint32_t)event->rank,
            .root = event->point_to_point.peer,
        });
    return NCCL_SUCCESS;
}

/* Versions 2 to 6 have the same field names, at other offsets. */
#define COLLECTIVE(event, id)                        \
    &(struct nccl_call)                              \
    {                                                \
        .function = (event)->collective.function,    \
        .datatype = (event)->collective.datatype,    \
        .algorithm = (event)->collective.algorithm,  \
        .protocol = (event)->collective.protocol,    \
        .count = (event)->collective.count,          \
        .communicator = (id),                        \
        .rank = (uint32_t)(event)->rank,             \
        .root = (event)->collective.root,            \
        .channels = (event)->collective.channels,    \
    }
#define POINT_TO_POINT(event, id, channel_count)      \
    &(struct nccl_call)                               \
    {                                                 \
        .function = (event)->point_to_point.function, \
        .datatype = (event)->point_to_point.datatype, \
        .count = (event)->point_to_point.count,       \
        .communicator = (id),                         \
        .rank = (uint32_t)(event)->rank,              \
        .root = (event)->point_to_point.peer,         \
        .channels = (channel_count),                  \
    }

static int start_v2(void *context, void **handle, struct nccl_event_v2 *event)
{
    *handle = nccl_unrecorded();
    if (context != NULL && event->type == NCCL_COLLECTIVE)
        *handle = nccl_begin(context, COLLECTIVE(event, event->collective.communicator));
    if (context != NULL && event->type == NCCL_POINT_TO_POINT)
        *handle = nccl_begin(context, POINT_TO_POINT(event, event->point_to_point.communicator, 0));
    return NCCL_SUCCESS;
}

/* Version 3 reports the maximum number of channels for a collective, and none for a send. */
static int start_v3(void *context, void **handle, struct nccl_event_v3 *event)
{
    *handle = nccl_unrecorded();
    if (event->type == NCCL_KERNEL_CHANNEL)
        *handle = nccl_begin_channel(event->parent, event->kernel.channel, 0);
    if (context == NULL || (event->type != NCCL_COLLECTIVE && event->type != NCCL_POINT_TO_POINT))
        return NCCL_SUCCESS;
    struct nccl_call call = event->type == NCCL_COLLECTIVE
                                ? *COLLECTIVE(event, event->collective.communicator)
                                : *POINT_TO_POINT(event, event->point_to_point.communicator, 0);
    call.channels_unknown = true;
    *handle = nccl_begin(context, &call);
    return NCCL_SUCCESS;
}

static int start_v4(void *context, void **handle, struct nccl_event_v4 *event)
{
    const struct nccl_communicator *communicator = context;
    *handle = nccl_unrecorded();
    if (communicator != NULL && event->type == NCCL_COLLECTIVE)
        *handle = nccl_begin(communicator, COLLECTIVE(event, communicator->id));
    if (communicator != NULL && event->type == NCCL_POINT_TO_POINT)
        *handle = nccl_begin(communicator, POINT_TO_POINT(event, communicator->id, event->point_to_point.channels));
    if (event->type == NCCL_KERNEL_CHANNEL)
        *handle = nccl_begin_channel(event->parent, event->kernel.channel, event->kernel.timer);
    return NCCL_SUCCESS;
}

static int start_v6(void *context, void **handle, struct nccl_event_v6 *event)
{
    const struct nccl_communicator *communicator = context;
    *handle = nccl_unrecorded();
    if (communicator != NULL && event->type == NCCL_COLLECTIVE)
        *handle = nccl_begin(communicator, COLLECTIVE(event, communicator->id));
    if (communicator != NULL && event->type == NCCL_POINT_TO_POINT)
        *handle = nccl_begin(communicator, POINT_TO_POINT(event, communicator->id, event->point_to_point.channels));
    if (communicator != NULL && event->type == NCCL_COPY_ENGINE_COLLECTIVE)
        *handle = nccl_begin(communicator, &(struct nccl_call){
            .function = event->copy_engine.function,
            .datatype = event->copy_engine.datatype,
            .count = event->copy_engine.count,
            .communicator = communicator->id,
            .rank = (uint32_t)event->rank,
            .root = event->copy_engine.root,
            .algorithm = "COPY_ENGINE",
        });
    if (event->type == NCCL_KERNEL_CHANNEL)
        *handle = nccl_begin_channel(event->parent, event->kernel.channel, event->kernel.timer);
    return NCCL_SUCCESS;
}

/* Versions 1 to 3 report neither the communicator's size nor the rank in it. */
static int init_v1(void **context, int *mask)
{
    return init(1, context, mask, 0, 0, 0);
}

static int init_v2(void **context, int *mask)
{
    return init(2, context, mask, 0, 0, 0);
}

static int init_v3(void **context, int *mask)
{
    return init(3, context, mask, 0, 0, 0);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
                   nccl_logger logger)
{
    (void)name, (void)nodes, (void)logger;
    return init(4, context, mask, id, ranks, rank);
}

static int init_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                   nccl_logger logger)
{
    (void)name, (void)nodes, (void)logger;
    return init(5, context, mask, id, ranks, rank);
}

static int init_v6(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                   nccl_logger logger)
{
    (void)name, (void)nodes, (void)logger;
    return init(6, context, mask, id, ranks, rank);
}

EXPORTED const struct nccl_profiler_v1 ncclProfiler_v1 = {NAME, init_v1, start_v1, stop, ignore_state, finalize};
EXPORTED const struct nccl_profiler_v2 ncclProfiler_v2 = {NAME, init_v2, start_v2, stop, ignore_state, finalize};
EXPORTED const struct nccl_profiler_v3 ncclProfiler_v3 = {NAME, init_v3, start_v3, stop, ignore_state, finalize};
EXPORTED const struct nccl_profiler_v4 ncclProfiler_v4 = {NAME, init_v4, start_v4, stop, record_state, finalize};
EXPORTED const struct nccl_profiler_v6 ncclProfiler_v5 = {NAME, init_v5, start_v6, stop, record_state, finalize};
EXPORTED const struct nccl_profiler_v6 ncclProfiler_v6 = {NAME, init_v6, start_v6, stop, record_state, finalize};
