#include "channel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "say.h"
#include "table.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct channel *channels;
static _Atomic uint64_t generation = 1; /* goes up when a communicator is freed: its handle may be given out again */
static int key; /* of the attribute that a channel is */
static void (*call_at_end)(void);
static word own; /* a duplicate of MPI_COMM_SELF */

static void close_channel(struct channel *c)
{
    if (c->open) {
        node_memory_close(&c->memory);
        calls.comm_free(&c->node);
        calls.comm_free(&c->messages);
        free(c->leaders);
    }
    c->open = false;
}

static int not_copied(word communicator, int this_key, void *extra, void *value, void *copied, int *keep)
{
    (void)communicator, (void)this_key, (void)extra, (void)value, (void)copied;
    *keep = 0;
    return 0;
}

/* The program frees a communicator, which all its members do together. */
static int communicator_gone(word communicator, int this_key, void *value, void *extra)
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

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF first, while everything still works. Threads may have made channels in another order
 * on another rank: they are closed in the order of their numbers. */
static int job_ends(word communicator, int this_key, void *value, void *extra)
{
    (void)communicator, (void)this_key, (void)value, (void)extra;
    size_t count = 0;
    call_at_end();
    for (struct channel *c = channels; c != NULL; c = c->next)
        count++;
    struct channel **all = needed_memory(count, sizeof *all);
    count = 0;
    for (struct channel *c = channels; c != NULL; c = c->next)
        all[count++] = c;
    qsort(all, count, sizeof *all, by_number);
    for (size_t i = 0; i < count; i++)
        close_channel(all[i]);
    free(all);
    if (own != 0)
        calls.comm_free(&own);
    return 0;
}

bool channels_start(void (*at_end)(void))
{
    call_at_end = at_end;
    int end_key;
    return calls.comm_create_keyval(not_copied, communicator_gone, &key, NULL) == 0 &&
        calls.comm_create_keyval(not_copied, job_ends, &end_key, NULL) == 0 &&
        calls.comm_set_attr(mpi.self, end_key, NULL) == 0 && calls.comm_dup(mpi.self, &own) == 0 &&
        calls.comm_set_errhandler(own, mpi.errors_return) == 0;
}

word channel_own(void)
{
    return own;
}

static struct channel *find(word communicator, int *status)
{
    struct channel *c = NULL;
    int found = 0, inter = 0;
    *status = calls.comm_get_attr(communicator, key, &c, &found);
    if (*status == 0 && !found)
        *status = mpi.comm_test_inter(communicator, &inter);
    if (*status != 0 || found || inter)
        return found ? c : NULL;
    c = needed_memory(1, sizeof *c);
    c->of = communicator;
    mpi.comm_rank(communicator, &c->rank);
    mpi.comm_size(communicator, &c->size);
    *status = calls.comm_set_attr(communicator, key, c);
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
    /* Looking it up costs as much as a small broadcast in shared memory. */
    static _Thread_local struct {
        uint64_t generation;
        struct channel *channel;
    } last;
    uint64_t now = atomic_load_explicit(&generation, memory_order_acquire);
    *status = 0;
    if (last.generation != now || last.channel == NULL || last.channel->of != communicator) {
        last.channel = find(communicator, status);
        last.generation = now;
    }
    return last.channel;
}

/* Every member's `mine` in `all`. */
static int tell(word communicator, const void *mine, void *all, size_t bytes)
{
    return calls.allgather(mine, (int)bytes, mpi.byte, all, (int)bytes, mpi.byte, communicator);
}

int channel_compare(struct channel *c)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (c->compared)
        return 0;
    uint64_t mine = table_checksum(), *all = needed_memory((size_t)c->size, sizeof *all);
    int status = tell(c->of, &mine, all, sizeof mine), other = 0;
    while (status == 0 && other < c->size && all[other] == all[0])
        other++;
    c->compared = status == 0;
    if (status == 0 && other == c->size)
        c->rules = table_rules(c->size);
    if (status == 0 && other < c->size && c->rank == 0 && !atomic_flag_test_and_set(&said))
        say("rank 0 and rank %d of %d have different decision tables, or one has none: broadcasts are left to the MPI library. Give all ranks "
            "the same table", other, c->size);
    free(all);
    return status;
}

/* What each member tells the others. */
struct told {
    uint64_t number;
    int leader; /* of its node */
    bool has_gpu;
};

/* The first member on this node. */
static int find_leader(struct channel *c, int *leader)
{
    int status = calls.comm_split_type(c->messages, mpi.shared, c->rank, mpi.no_info, &c->node);
    if (status != 0)
        return status;
    calls.comm_set_errhandler(c->node, mpi.errors_return);
    mpi.comm_rank(c->node, &c->memory.rank);
    mpi.comm_size(c->node, &c->memory.size);
    int *members = needed_memory((size_t)c->memory.size, sizeof *members);
    status = tell(c->node, &c->rank, members, sizeof *members);
    *leader = members[0];
    free(members);
    return status;
}

static void note_nodes(struct channel *c, const struct told *all)
{
    int *ranks = needed_memory((size_t)c->size, sizeof *ranks);
    c->leaders = needed_memory(2 * (size_t)c->size, sizeof *c->leaders);
    c->nodes = c->leaders + c->size;
    c->number = all[0].number;
    c->memory_allowed = true;
    for (int i = 0; i < c->size; i++) {
        int leader = c->leaders[i] = all[i].leader;
        if (leader == i)
            c->nodes[c->node_count++] = i;
        if (++ranks[leader] > c->ranks_per_node)
            c->ranks_per_node = ranks[leader];
        /* Buffers may lie on the GPU, where only MPI itself may read them. */
        c->memory_allowed = c->memory_allowed && !all[i].has_gpu;
    }
    free(ranks);
}

int channel_open(struct channel *c)
{
    if (c->open)
        return 0;
    int status = calls.comm_dup(c->of, &c->messages);
    if (status != 0)
        return status;
    calls.comm_set_errhandler(c->messages, mpi.errors_return);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct told mine = {.number = ((uint64_t)now.tv_sec << 30 | (uint64_t)now.tv_nsec) ^ (uint64_t)getpid() << 44};
    mine.has_gpu = access("/proc/driver/nvidia/version", F_OK) == 0;
    status = find_leader(c, &mine.leader);
    if (status != 0)
        return status;
    struct told *all = needed_memory((size_t)c->size, sizeof *all);
    status = tell(c->messages, &mine, all, sizeof mine);
    if (status == 0)
        note_nodes(c, all);
    free(all);
    c->open = status == 0;
    return status;
}

/* Whether this rank has the node's memory. */
static bool share_memory(struct channel *c)
{
    struct node_memory_place place = {.file = -1}, *all = needed_memory((size_t)c->memory.size, sizeof *all);
    bool shared = c->memory.rank != 0 || node_memory_make(&c->memory, &place);
    if (tell(c->node, &place, all, sizeof place) != 0)
        shared = false;
    else if (c->memory.rank != 0)
        shared = node_memory_attach(&c->memory, &all[0]);
    free(all);
    /* Not before the others have attached it. */
    char ready = shared, *others = needed_memory((size_t)c->memory.size, 1);
    tell(c->node, &ready, others, 1);
    free(others);
    if (place.file >= 0)
        close(place.file);
    return shared;
}

bool channel_has_memory(struct channel *c)
{
    if (c->memory_tried || !c->memory_allowed)
        return c->has_memory;
    static atomic_flag said = ATOMIC_FLAG_INIT;
    c->memory.progress = c->messages;
    c->memory.progress_rank = c->rank;
    char mine = c->memory.size == 1 || share_memory(c), *all = needed_memory((size_t)c->size, 1);
    c->memory_tried = true;
    c->has_memory = tell(c->messages, &mine, all, 1) == 0;
    for (int i = 0; i < c->size; i++)
        c->has_memory = c->has_memory && all[i];
    if (!c->has_memory && c->rank == 0 && !atomic_flag_test_and_set(&said))
        say("ranks of one node cannot share memory: two-level broadcasts are a chain through all ranks");
    free(all);
    return c->has_memory;
}
