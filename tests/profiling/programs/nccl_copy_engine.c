/*
 * nccl_copy_engine PLUGIN 6: makes one collective by the copy engines, and one with unknown names.
 * The status is 3 if the mask of events, which all communicators share, changes while one is made.
 */
#include "../../../native/nccl_plugin/abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { COMMUNICATORS = 200000 };

static int shared_mask, changes;
static atomic_bool reading, made;

static void *count_changes(void *known)
{
    for (reading = true; !made;)
        changes += __atomic_load_n(&shared_mask, __ATOMIC_RELAXED) != *(int *)known;
    return NULL;
}

static void make_communicators(const struct nccl_profiler_v6 *table, int mask)
{
    pthread_t reader;
    shared_mask = mask;
    pthread_create(&reader, NULL, count_changes, &mask);
    while (!reading)
        sched_yield();
    for (int i = 0; i < COMMUNICATORS; i++) {
        void *context;
        table->init(&context, 2, &shared_mask, "name", 1, 2, 0, NULL);
        table->finalize(context);
    }
    made = true;
    pthread_join(reader, NULL);
}

int main(int count, char **arguments)
{
    void *plugin = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct nccl_profiler_v6 *table = plugin != NULL ? dlsym(plugin, "ncclProfiler_v6") : NULL;
    if (table == NULL)
        return 1;
    void *context, *handle;
    int mask = 0;
    table->init(&context, 1, &mask, "name", 1, 2, 0, NULL);
    if ((mask & NCCL_COPY_ENGINE_COLLECTIVE) == 0)
        return 2;
    make_communicators(table, mask);
    if (changes != 0)
        return 3;
    table->start(context, &handle, &(struct nccl_event_v6){
        .type = NCCL_COPY_ENGINE_COLLECTIVE,
        .copy_engine = {.function = "AlltoAll", .count = 100, .datatype = "ncclFloat32"},
    });
    table->stop(handle);
    table->start(context, &handle, &(struct nccl_event_v6){
        .type = NCCL_COLLECTIVE,
        .collective = {.function = "Everything", .count = 100, .datatype = "ncclFloat3",
                       .algorithm = "AN_ALGORITHM_OF_THE_FUTURE", .protocol = ""},
    });
    table->stop(handle);
    /* Events that were not requested, and handles of finished calls, must be ignored. */
    table->stop(handle);
    table->start(context, &handle, &(struct nccl_event_v6){.type = NCCL_KERNEL_CHANNEL, .parent = handle});
    table->record_state(handle, NCCL_KERNEL_CHANNEL_STOP, &(union nccl_state_arguments){.kernel = {1}});
    table->stop(handle);
    table->start(context, &handle, &(struct nccl_event_v6){.type = 1 << 20});
    table->stop(handle);
    return table->finalize(context);
}
