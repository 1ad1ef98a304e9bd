/*
 * nccl_harness PLUGIN VERSION [THREADS CALLS [kill]]: calls hvprof's NCCL plug-in as NCCL does.
 *
 * Each thread is a communicator of 2 ranks and cycles through `calls`. A call starts a group,
 * starts and stops the call, and stops the group. Then another thread, like NCCL's proxy, reports
 * the channels of the call's kernel, which takes CHANNEL_NS of device time per channel. With "kill"
 * the program ends by SIGKILL after all calls, without finalize.
 */
#include "../../../native/nccl_plugin/abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHANNEL_NS = 1000, GROUP = 1, GROUP_API = 1 << 8, COLLECTIVE_API = 1 << 9 };

static const struct call {
    int kind;
    const char *function, *datatype, *algorithm, *protocol;
    uint8_t function_v1, datatype_v1, algorithm_v1, protocol_v1;
    size_t count;
    int root;
    uint8_t channels;
} calls[] = {
    {NCCL_COLLECTIVE, "AllReduce", "ncclFloat32", "RING", "SIMPLE", 4, 7, 1, 2, 1 << 20, 0, 4},
    {NCCL_COLLECTIVE, "AllReduce", "ncclFloat16", "TREE", "LL", 4, 6, 0, 0, 100, 0, 1},
    {NCCL_COLLECTIVE, "Broadcast", "ncclInt8", "RING", "LL128", 0, 0, 1, 1, 4096, 1, 2},
    {NCCL_COLLECTIVE, "AllGather", "ncclInt8", "NVLS", "SIMPLE", 2, 0, 4, 2, 500, 0, 2},
    {NCCL_COLLECTIVE, "ReduceScatter", "ncclBfloat16", "COLLNET_DIRECT", "SIMPLE", 3, 9, 2, 2, 64, 0, 3},
    {NCCL_COLLECTIVE, "Reduce", "ncclFloat64", "RING", "LL", 1, 8, 1, 0, 9, 1, 1},
    {NCCL_POINT_TO_POINT, "Send", "ncclInt32", NULL, NULL, 6, 2, 0, 0, 10, 1, 2},
    {NCCL_POINT_TO_POINT, "Recv", "ncclInt32", NULL, NULL, 7, 2, 0, 0, 10, 1, 2},
};
enum { KINDS = sizeof calls / sizeof *calls };

static int version, mask, calls_each;
static void *table;

#define DIE(...) (fprintf(stderr, __VA_ARGS__), exit(1))
#define CHECK(call) ((call) == NCCL_SUCCESS ? (void)0 : (void)DIE("%s failed\n", #call))

/* The tables differ only in init and start; the other functions have the same offsets. */
static int stop(void *handle)
{
    return handle == NULL ? NCCL_SUCCESS : ((struct nccl_profiler_v1 *)table)->stop(handle);
}

static void start_group(void *context, void **handle)
{
    struct nccl_event_v1 old = {.type = GROUP};
    struct nccl_event_v6 new = {.type = GROUP};
    *handle = NULL;
    if (version < 5)
        CHECK(((struct nccl_profiler_v1 *)table)->start(context, handle, &old));
    else
        CHECK(((struct nccl_profiler_v6 *)table)->start(context, handle, &new));
    /* NCCL 2.24 to 2.27 start no call in a group whose handle is NULL. */
    if (*handle == NULL)
        DIE("no handle for a group\n");
}

#define COLLECTIVE(VERSION)                                                                                  \
    (struct nccl_event_##VERSION)                                                                            \
    {                                                                                                        \
        .type = NCCL_COLLECTIVE, .parent = group,                                                            \
        .collective = {.function = c->function, .count = c->count, .root = c->root, .datatype = c->datatype, \
                       .channels = c->channels, .algorithm = c->algorithm, .protocol = c->protocol}          \
    }
#define POINT_TO_POINT(VERSION)                                                                                \
    (struct nccl_event_##VERSION)                                                                              \
    {                                                                                                          \
        .type = NCCL_POINT_TO_POINT, .parent = group,                                                          \
        .point_to_point = {.function = c->function, .count = c->count, .peer = c->root, .datatype = c->datatype} \
    }

static void *start_call(void *context, void *group, const struct call *c, uint64_t communicator, int rank)
{
    bool collective = c->kind == NCCL_COLLECTIVE;
    void *handle = NULL;
    if (version == 1) {
        struct nccl_event_v1 event = {.type = (uint8_t)c->kind, .parent = group, .rank = rank};
        if (collective) {
            event.collective.communicator = communicator;
            event.collective.function = c->function_v1;
            event.collective.count = c->count;
            event.collective.root = c->root;
            event.collective.datatype = c->datatype_v1;
            event.collective.channels = c->channels;
            event.collective.algorithm = c->algorithm_v1;
            event.collective.protocol = c->protocol_v1;
        } else {
            event.point_to_point.communicator = communicator;
            event.point_to_point.function = c->function_v1;
            event.point_to_point.datatype = c->datatype_v1;
            event.point_to_point.count = c->count;
            event.point_to_point.peer = c->root;
        }
        CHECK(((struct nccl_profiler_v1 *)table)->start(context, &handle, &event));
    } else if (version == 2) {
        struct nccl_event_v2 event = collective ? COLLECTIVE(v2) : POINT_TO_POINT(v2);
        event.rank = rank;
        *(collective ? &event.collective.communicator : &event.point_to_point.communicator) = communicator;
        CHECK(((struct nccl_profiler_v2 *)table)->start(context, &handle, &event));
    } else if (version == 3) {
        struct nccl_event_v3 event = collective ? COLLECTIVE(v3) : POINT_TO_POINT(v3);
        event.rank = rank;
        *(collective ? &event.collective.communicator : &event.point_to_point.communicator) = communicator;
        /* NCCL 2.26 reports the maximum number of channels of a call. */
        if (collective)
            event.collective.channels = 64;
        CHECK(((struct nccl_profiler_v3 *)table)->start(context, &handle, &event));
    } else if (version == 4) {
        struct nccl_event_v4 event = collective ? COLLECTIVE(v4) : POINT_TO_POINT(v4);
        event.rank = rank;
        if (!collective)
            event.point_to_point.channels = c->channels;
        CHECK(((struct nccl_profiler_v4 *)table)->start(context, &handle, &event));
    } else {
        struct nccl_event_v6 event = collective ? COLLECTIVE(v6) : POINT_TO_POINT(v6);
        event.rank = rank;
        event.parent = NULL;
        if (!collective)
            event.point_to_point.channels = c->channels;
        CHECK(((struct nccl_profiler_v6 *)table)->start(context, &handle, &event));
    }
    return handle;
}

static void *start_channel(void *context, void *parent, uint8_t channel, uint64_t timer)
{
    void *handle = NULL;
    if (version == 3)
        CHECK(((struct nccl_profiler_v3 *)table)
                  ->start(context, &handle,
                          &(struct nccl_event_v3){
                              .type = NCCL_KERNEL_CHANNEL, .parent = parent, .kernel = {channel}}));
    else if (version == 4)
        CHECK(((struct nccl_profiler_v4 *)table)
                  ->start(context, &handle,
                          &(struct nccl_event_v4){
                              .type = NCCL_KERNEL_CHANNEL, .parent = parent, .kernel = {channel, timer}}));
    else
        CHECK(((struct nccl_profiler_v6 *)table)
                  ->start(context, &handle,
                          &(struct nccl_event_v6){
                              .type = NCCL_KERNEL_CHANNEL, .parent = parent, .kernel = {channel, timer}}));
    return handle;
}

struct communicator {
    void *context;
    void **handles;
    uint64_t id;
    int rank;
    pthread_mutex_t lock;
    pthread_cond_t more;
    int made;
};

/*
 * Acts as NCCL's proxy thread: reports the channels kernel by kernel, first all starts, then all
 * stops.
 */
static void *proxy(void *argument)
{
    struct communicator *own = argument;
    uint64_t device = 1;
    for (int i = 0; i < calls_each; i++) {
        pthread_mutex_lock(&own->lock);
        while (own->made <= i)
            pthread_cond_wait(&own->more, &own->lock);
        void *call = own->handles[i];
        pthread_mutex_unlock(&own->lock);
        const struct call *c = &calls[i % KINDS];
        void *channels[256];
        for (uint8_t channel = 0; channel < c->channels; channel++)
            channels[channel] = start_channel(own->context, call, channel, device + channel);
        device += (uint64_t)CHANNEL_NS * c->channels;
        for (uint8_t channel = 0; channel < c->channels; channel++) {
            union nccl_state_arguments stopped = {.kernel = {device - (uint64_t)(c->channels - 1 - channel)}};
            if (version >= 4)
                CHECK(((struct nccl_profiler_v4 *)table)
                          ->record_state(channels[channel], NCCL_KERNEL_CHANNEL_STOP, &stopped));
            CHECK(stop(channels[channel]));
        }
    }
    return NULL;
}

static void *communicator(void *argument)
{
    struct communicator own = {
        .id = 0xC0FFEE00u + (uint64_t)(intptr_t)argument,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .more = PTHREAD_COND_INITIALIZER,
    };
    own.rank = atoi(getenv("RANK"));
    int asked = 0;
    if (version < 4)
        CHECK(((struct nccl_profiler_v1 *)table)->init(&own.context, &asked));
    else if (version == 4)
        CHECK(((struct nccl_profiler_v4 *)table)->init(&own.context, &asked, "name", own.id, 1, 2, own.rank, NULL));
    else
        CHECK(((struct nccl_profiler_v6 *)table)->init(&own.context, own.id, &asked, NULL, 1, 2, own.rank, NULL));
    __atomic_store_n(&mask, asked, __ATOMIC_RELAXED);
    if (asked == 0)
        return NULL;
    own.handles = calloc((size_t)calls_each, sizeof *own.handles);
    pthread_t thread;
    if (asked & NCCL_KERNEL_CHANNEL)
        pthread_create(&thread, NULL, proxy, &own);
    for (int i = 0; i < calls_each; i++) {
        void *group;
        start_group(own.context, &group);
        void *call = start_call(own.context, group, &calls[i % KINDS], own.id, own.rank);
        pthread_mutex_lock(&own.lock);
        own.handles[i] = call;
        own.made = i + 1;
        pthread_cond_signal(&own.more);
        pthread_mutex_unlock(&own.lock);
        CHECK(stop(call));
        CHECK(stop(group));
    }
    if (asked & NCCL_KERNEL_CHANNEL)
        pthread_join(thread, NULL);
    free(own.handles);
    return own.context;
}

int main(int count, char **arguments)
{
    void *plugin = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL)
        DIE("%s\n", dlerror());
    version = atoi(arguments[2]);
    int threads = count > 3 ? atoi(arguments[3]) : 1;
    calls_each = count > 4 ? atoi(arguments[4]) : KINDS;
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    table = dlsym(plugin, symbol);
    if (table == NULL)
        DIE("%s\n", dlerror());
    pthread_t started[64];
    for (int i = 0; i < threads; i++)
        pthread_create(&started[i], NULL, communicator, (void *)(intptr_t)i);
    void *contexts[64];
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], &contexts[i]);
    if (count > 5 && strcmp(arguments[5], "kill") == 0)
        kill(getpid(), SIGKILL);
    for (int i = 0; i < threads; i++)
        if (contexts[i] != NULL)
            CHECK(version < 4 ? ((struct nccl_profiler_v1 *)table)->finalize(contexts[i])
                              : ((struct nccl_profiler_v4 *)table)->finalize(contexts[i]));
    dlclose(plugin);
    printf("%d\n", mask);
    return 0;
}
