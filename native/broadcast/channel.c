/* Creates, opens and closes channels, which are stored as attributes of communicators. */
#include "channel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "broadcast.h"
#include "common/log.h"
#include "mpi_abi/mpi_abi.h"
#include "table.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct channel *channels;
static _Atomic uint64_t generation = 1; /* increases when a communicator is freed: MPI may reuse its handle */
static int key; /* of the attribute that holds a channel */
static void (*call_at_end)(void);
static word self; /* a duplicate of MPI_COMM_SELF */

static void close_channel(struct channel *c)
{
    if (c->open) {
        node_memory_close(&c->memory);
        mpi.comm_free(&c->node);
        mpi.comm_free(&c->messages);
        free(c->leaders);
    }
    c->open = false;
}

/* Called when the program frees a communicator, which is collective. */
static int delete_channel(word communicator, int this_key, void *value, void *extra)
{
    (void)communicator, (void)this_key, (void)extra;
    struct channel *c = value;
    atomic_fetch_add_explicit(&generation, 1, memory_order_release);
    pthread_mutex_lock(&lock);
    struct channel **at = &channels;
    while (*at != NULL && *at != c)
        at = &(*at)->next;
    if (*at != NULL)
        *at = c->next;
    pthread_mutex_unlock(&lock);
    close_channel(c);
    free(c);
    return 0;
}

static int by_number(const void *a, const void *b)
{
    uint64_t first = (*(struct channel *const *)a)->number, second = (*(struct channel *const *)b)->number;
    return (first > second) - (first < second);
}

/* In the order of their numbers, because on another rank threads may have created them in another one. */
static int close_all_channels(word communicator, int this_key, void *value, void *extra)
{
    (void)communicator, (void)this_key, (void)value, (void)extra;
    size_t count = 0;
    call_at_end();
    for (struct channel *c = channels; c != NULL; c = c->next)
        count++;
    struct channel **all = require_memory(count, sizeof *all);
    count = 0;
    for (struct channel *c = channels; c != NULL; c = c->next)
        all[count++] = c;
    qsort(all, count, sizeof *all, by_number);
    for (size_t i = 0; i < count; i++)
        close_channel(all[i]);
    free(all);
    if (self != 0)
        mpi.comm_free(&self);
    return 0;
}

bool channels_start(void (*at_end)(void))
{
    call_at_end = at_end;
    return mpi.comm_create_keyval(mpi_do_not_copy, delete_channel, &key, NULL) == 0 &&
        mpi_call_at_end(close_all_channels) && mpi.comm_dup(mpi.comm_self, &self) == 0 &&
        mpi.comm_set_errhandler(self, mpi.errors_return) == 0;
}

word channel_self(void)
{
    return self;
}

static struct channel *find_or_create(word communicator, int *status)
{
    struct channel *c = NULL;
    int found = 0, inter = 0;
    *status = mpi.comm_get_attr(communicator, key, &c, &found);
    if (*status == 0 && !found)
        *status = mpi.comm_test_inter(communicator, &inter);
    if (*status != 0 || found || inter)
        return found ? c : NULL;
    c = require_memory(1, sizeof *c);
    c->of = communicator;
    mpi.comm_rank(communicator, &c->rank);
    mpi.comm_size(communicator, &c->size);
    *status = mpi.comm_set_attr(communicator, key, c);
    if (*status != 0) {
        free(c);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    c->next = channels;
    channels = c;
    pthread_mutex_unlock(&lock);
    return c;
}

struct channel *channel_of(word communicator, int *status)
{
    /* Cached: a lookup takes as long as a small broadcast in shared memory. */
    static _Thread_local struct {
        uint64_t generation;
        word communicator;
        struct channel *channel;
    } last;
    uint64_t now = atomic_load_explicit(&generation, memory_order_acquire);
    *status = 0;
    /* The cached channel must not be read to decide: another thread may free it at this moment. */
    if (last.generation != now || last.channel == NULL || last.communicator != communicator) {
        last.channel = find_or_create(communicator, status);
        last.communicator = communicator;
        last.generation = now;
    }
    return last.channel;
}

/* Gathers `mine` of every member in `all`. */
static int allgather_bytes(word communicator, const void *mine, void *all, size_t bytes)
{
    return mpi.allgather(mine, (int)bytes, mpi.type_byte, all, (int)bytes, mpi.type_byte, communicator);
}

int channel_compare(struct channel *c)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (c->compared)
        return 0;
    uint64_t mine = table_checksum(), *all = require_memory((size_t)c->size, sizeof *all);
    int status = allgather_bytes(c->of, &mine, all, sizeof mine), other = 0;
    while (status == 0 && other < c->size && all[other] == all[0])
        other++;
    c->compared = status == 0;
    if (status == 0 && other == c->size)
        c->rules = table_rules(c->size);
    if (status == 0 && other < c->size && c->rank == 0 && !atomic_flag_test_and_set(&warned))
        log_line("rank 0 and rank %d of %d have different decision tables, or one has none: broadcasts are left to the "
                 "MPI library. Give all ranks the same table",
                 other, c->size);
    free(all);
    return status;
}

void channels_forget_rules(void)
{
    pthread_mutex_lock(&lock);
    for (struct channel *c = channels; c != NULL; c = c->next) {
        c->compared = false;
        c->rules = (struct rules){0};
    }
    pthread_mutex_unlock(&lock);
}

/* Facts about each member, gathered on all members. */
struct member {
    uint64_t number;
    int leader; /* of its node */
    bool has_gpu;
};

/* Finds the first member on this node. */
static int find_leader(struct channel *c, int *leader)
{
    int status = mpi.comm_split_type(c->messages, mpi.comm_type_shared, c->rank, mpi.info_null, &c->node);
    if (status != 0)
        return status;
    mpi.comm_set_errhandler(c->node, mpi.errors_return);
    mpi.comm_rank(c->node, &c->memory.rank);
    mpi.comm_size(c->node, &c->memory.size);
    int *members = require_memory((size_t)c->memory.size, sizeof *members);
    status = allgather_bytes(c->node, &c->rank, members, sizeof *members);
    *leader = members[0];
    free(members);
    return status;
}

static void set_nodes(struct channel *c, const struct member *all)
{
    int *ranks = require_memory((size_t)c->size, sizeof *ranks);
    c->leaders = require_memory(2 * (size_t)c->size, sizeof *c->leaders);
    c->nodes = c->leaders + c->size;
    c->number = all[0].number;
    c->memory_allowed = true;
    for (int i = 0; i < c->size; i++) {
        int leader = c->leaders[i] = all[i].leader;
        if (leader == i)
            c->nodes[c->node_count++] = i;
        if (++ranks[leader] > c->ranks_per_node)
            c->ranks_per_node = ranks[leader];
        /* With a GPU, buffers may be in its memory, which only MPI can read. */
        c->memory_allowed = c->memory_allowed && !all[i].has_gpu;
    }
    free(ranks);
}

int channel_open(struct channel *c)
{
    if (c->open)
        return 0;
    int status = mpi.comm_dup(c->of, &c->messages);
    if (status != 0)
        return status;
    mpi.comm_set_errhandler(c->messages, mpi.errors_return);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct member mine = {.number = ((uint64_t)now.tv_sec << 30 | (uint64_t)now.tv_nsec) ^ (uint64_t)getpid() << 44};
    mine.has_gpu = access("/proc/driver/nvidia/version", F_OK) == 0;
    status = find_leader(c, &mine.leader);
    if (status != 0)
        return status;
    struct member *all = require_memory((size_t)c->size, sizeof *all);
    status = allgather_bytes(c->messages, &mine, all, sizeof mine);
    if (status == 0)
        set_nodes(c, all);
    free(all);
    c->open = status == 0;
    return status;
}

/* Returns whether this rank shares the node's memory. */
static bool share_memory(struct channel *c)
{
    struct node_memory_place place = {.file = -1}, *all = require_memory((size_t)c->memory.size, sizeof *all);
    bool shared = c->memory.rank != 0 || node_memory_create(&c->memory, &place);
    if (allgather_bytes(c->node, &place, all, sizeof place) != 0)
        shared = false;
    else if (c->memory.rank != 0)
        shared = node_memory_attach(&c->memory, &all[0]);
    free(all);
    /* Keep the file open until the other ranks have attached it. */
    char ready = shared, *others = require_memory((size_t)c->memory.size, 1);
    allgather_bytes(c->node, &ready, others, 1);
    free(others);
    if (place.file >= 0)
        close(place.file);
    return shared;
}

bool channel_has_memory(struct channel *c)
{
    if (c->memory_tried || !c->memory_allowed)
        return c->has_memory;
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    c->memory.progress = c->messages;
    c->memory.progress_rank = c->rank;
    char mine = c->memory.size == 1 || share_memory(c), *all = require_memory((size_t)c->size, 1);
    c->memory_tried = true;
    c->has_memory = allgather_bytes(c->messages, &mine, all, 1) == 0;
    for (int i = 0; i < c->size; i++)
        c->has_memory = c->has_memory && all[i];
    if (!c->has_memory && c->rank == 0 && !atomic_flag_test_and_set(&warned))
        log_line("ranks of one node cannot share memory: two-level broadcasts are a chain through all ranks");
    free(all);
    return c->has_memory;
}
