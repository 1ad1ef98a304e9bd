/* Gives each communicator an identity that is equal on all members, without messages. */
#include "communicators.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "format.h"
#include "profiler.h"
#include "recorder.h"
#include "requests.h"

enum { BUCKETS = 256, RECENT = 4 };

/* The number of communicators created from one parent with the same members. */
struct created {
    uint64_t key;
    uint32_t count;
    struct created *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct communicator *buckets[BUCKETS];
static struct communicator *unused; /* reused but never freed, because a thread may still use one */
static struct created *all_created[BUCKETS];
static uint32_t own_identities; /* number of own identities taken by this process */
static _Atomic uint64_t generation = 1; /* increases when a handle is freed */
/*
 * Used for every communicator once memory has run out. Recording has stopped then, and callers only
 * need a valid pointer.
 */
static struct communicator placeholder = {.indexed = true, .neighbours = 1};

static uint64_t mix(uint64_t hash, uint64_t value)
{
    /* Added before mixing: equal small numbers must not cancel to 0, which means unknown. */
    value = (value + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ value ^ value >> 31) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static size_t bucket_of(uint64_t key)
{
    return mix(0, key) >> 56;
}

static uint64_t world_identity(void)
{
    int size = 0;
    mpi.comm_size(mpi.comm_world, &size);
    return mix(1, (uint64_t)size);
}

static uint64_t own_identity(void)
{
    int rank = 0;
    mpi.comm_rank(mpi.comm_world, &rank);
    return mix(mix(mix(world_identity(), (uint64_t)rank), (uint64_t)getpid()), ++own_identities);
}

/*
 * The hash of a group's ranks in MPI_COMM_WORLD, in order. 0 if a rank belongs to another
 * MPI_COMM_WORLD, or if memory has run out. Frees the group.
 */
static uint64_t hash_members(word group)
{
    word world = 0;
    int size = 0;
    mpi.comm_group(mpi.comm_world, &world);
    mpi.group_size(group, &size);
    int *ranks = calloc(2 * (size_t)size + 1, sizeof *ranks);
    uint64_t hash = 0;
    if (ranks == NULL) {
        hvprof_stop_out_of_memory();
    } else {
        int *world_ranks = ranks + size;
        for (int i = 0; i < size; i++)
            ranks[i] = i;
        mpi.group_translate_ranks(group, size, ranks, world, world_ranks);
        hash = mix(2, (uint64_t)size);
        for (int i = 0; i < size; i++)
            hash = world_ranks[i] < 0 || hash == 0 ? 0 : mix(hash, (uint64_t)world_ranks[i]);
    }
    free(ranks);
    mpi.group_free(&world);
    mpi.group_free(&group);
    return hash;
}

/*
 * The hash of all members. For an inter-communicator it does not depend on the order of the groups,
 * because each side calls the other one remote.
 */
static uint64_t hash_all_members(const struct communicator *c)
{
    word group = 0;
    mpi.comm_group(c->handle, &group);
    uint64_t hash = hash_members(group);
    if (!c->inter || hash == 0)
        return hash;
    group = 0;
    mpi.comm_remote_group(c->handle, &group);
    uint64_t other = hash_members(group);
    return other == 0 ? 0 : mix(3, hash + other);
}

/* With `lock` held. */
static uint32_t count_created(uint64_t key)
{
    struct created **bucket = &all_created[bucket_of(key)];
    for (struct created *known = *bucket; known != NULL; known = known->next)
        if (known->key == key)
            return ++known->count;
    struct created *new = malloc(sizeof *new);
    if (new == NULL) {
        hvprof_stop_out_of_memory();
        return 0;
    }
    *new = (struct created){.key = key, .next = *bucket};
    *bucket = new;
    return 0;
}

static void describe(struct communicator *c)
{
    int inter = 0;
    mpi.comm_test_inter(c->handle, &inter);
    mpi.comm_size(c->handle, &c->size);
    mpi.comm_rank(c->handle, &c->rank);
    c->inter = inter != 0;
    if (c->inter)
        mpi.comm_remote_size(c->handle, &c->remote_size);
}

/* With `lock` held. */
static struct communicator *look_up(word handle)
{
    struct communicator *c = buckets[bucket_of(handle)];
    while (c != NULL && c->handle != handle)
        c = c->next;
    return c;
}

/* With `lock` held. Replaces an entry of the same handle whose communicator was freed unnoticed. */
static struct communicator *insert(const struct communicator *described)
{
    struct communicator *c = look_up(described->handle);
    if (c == NULL) {
        c = unused != NULL ? unused : aligned_alloc(_Alignof(struct communicator), sizeof *c);
        if (c == NULL) {
            hvprof_stop_out_of_memory();
            return &placeholder;
        }
        if (c == unused)
            unused = c->next;
        struct communicator **bucket = &buckets[bucket_of(described->handle)];
        c->next = *bucket;
        *bucket = c;
    }
    struct communicator *next = c->next;
    *c = *described;
    c->next = next;
    return c;
}

static struct communicator *find_or_insert(word handle)
{
    pthread_mutex_lock(&lock);
    struct communicator *c = look_up(handle);
    pthread_mutex_unlock(&lock);
    if (c != NULL)
        return c;
    struct communicator new = {.handle = handle};
    describe(&new);
    pthread_mutex_lock(&lock);
    c = look_up(handle);
    if (c == NULL) {
        if (handle == mpi.comm_world)
            new.identity = world_identity();
        else if (handle == mpi.comm_self)
            new.identity = own_identity();
        else
            new.identity = own_identity(), new.own_identity = true;
        c = insert(&new);
    }
    pthread_mutex_unlock(&lock);
    return c;
}

struct communicator *communicator_of(word handle)
{
    static _Thread_local struct {
        word handle;
        uint64_t generation;
        struct communicator *communicator;
    } recent[RECENT];
    size_t i = handle * 0x9E3779B97F4A7C15u >> 62;
    uint64_t now = atomic_load_explicit(&generation, memory_order_acquire);
    if (recent[i].generation != now || recent[i].handle != handle) {
        recent[i].communicator = find_or_insert(handle);
        recent[i].handle = handle;
        recent[i].generation = now;
    }
    return recent[i].communicator;
}

uint32_t communicator_index(struct communicator *c)
{
    if (!atomic_load_explicit(&c->indexed, memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load_explicit(&c->indexed, memory_order_relaxed)) {
            c->index = hvprof_add_communicator(c->identity, (uint32_t)c->size, (uint32_t)c->rank,
                                               (uint32_t)c->remote_size, c->own_identity ? HVPROF_OWN_IDENTITY : 0);
            atomic_store_explicit(&c->indexed, true, memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    return c->index;
}

void neighbours_of(word handle, int *sources, int *destinations)
{
    int topology = 0, count = 0, weighted = 0, rank = 0;
    mpi.topo_test(handle, &topology);
    if (topology == mpi.topo_dist_graph) {
        mpi.dist_graph_neighbors_count(handle, sources, destinations, &weighted);
        return;
    }
    if (topology == mpi.topo_cart) {
        mpi.cartdim_get(handle, &count);
        count *= 2;
    } else if (topology == mpi.topo_graph) {
        mpi.comm_rank(handle, &rank);
        mpi.graph_neighbors_count(handle, rank, &count);
    }
    *sources = *destinations = count;
}

int communicator_neighbours(struct communicator *c)
{
    int known = atomic_load_explicit(&c->neighbours, memory_order_relaxed);
    if (known == 0) {
        int sources = 0, destinations = 0;
        neighbours_of(c->handle, &sources, &destinations);
        known = sources + 1;
        atomic_store_explicit(&c->neighbours, known, memory_order_relaxed);
    }
    return known - 1;
}

/*
 * The identity of a new communicator of `parent` (0: none); 0 if the members cannot agree on one.
 * `salt` distinguishes constructions that may run at the same time. All members create the
 * communicators of one parent with the same members in the same order, so its number in that order
 * needs no message.
 */
static uint64_t new_identity(uint64_t parent, uint32_t salt, uint64_t group)
{
    if (group == 0)
        return 0;
    uint64_t key = mix(mix(mix(4, parent), salt), group);
    pthread_mutex_lock(&lock);
    uint64_t identity = mix(key, count_created(key));
    pthread_mutex_unlock(&lock);
    return identity;
}

void communicator_register(uint64_t identity, word handle)
{
    if (!hvprof_is_recording())
        return;
    struct communicator new = {.handle = handle, .identity = identity, .own_identity = identity == 0};
    describe(&new);
    pthread_mutex_lock(&lock);
    if (new.own_identity)
        new.identity = own_identity();
    insert(&new);
    pthread_mutex_unlock(&lock);
}

static void register_created(uint64_t parent, uint32_t salt, word handle)
{
    if (handle == mpi.comm_null)
        return;
    struct communicator new = {.handle = handle};
    describe(&new);
    communicator_register(new_identity(parent, salt, hash_all_members(&new)), handle);
}

void communicator_forget(word handle)
{
    pthread_mutex_lock(&lock);
    struct communicator **place = &buckets[bucket_of(handle)];
    while (*place != NULL && (*place)->handle != handle)
        place = &(*place)->next;
    struct communicator *c = *place;
    if (c != NULL) {
        *place = c->next;
        c->next = unused;
        unused = c;
    }
    atomic_fetch_add_explicit(&generation, 1, memory_order_release);
    pthread_mutex_unlock(&lock);
}

/*
 * Wraps MPI_<name>. The parameters: number of arguments, identity of the parent, salt for
 * new_identity, argument with the result.
 */
#define CONSTRUCTOR(name, arity, parent, salt, result) \
    WRAPPED(name, arity) \
    { \
        FIND(name) \
        int status = REAL(arity); \
        if (status == 0 && profiler_ready()) \
            register_created(parent, (uint32_t)(salt), handle_at(result)); \
        return status; \
    }
#define PARENT communicator_of(as_handle(a0))->identity

CONSTRUCTOR(Comm_dup, 2, PARENT, 0, a1)
CONSTRUCTOR(Comm_dup_with_info, 3, PARENT, 0, a2)
CONSTRUCTOR(Comm_create, 3, PARENT, 0, a2)
CONSTRUCTOR(Comm_create_group, 4, PARENT, a2, a3)
CONSTRUCTOR(Comm_split, 4, PARENT, 0, a3)
CONSTRUCTOR(Comm_split_type, 5, PARENT, 0, a4)
CONSTRUCTOR(Cart_create, 6, PARENT, 0, a5)
CONSTRUCTOR(Cart_sub, 3, PARENT, 0, a2)
CONSTRUCTOR(Graph_create, 6, PARENT, 0, a5)
CONSTRUCTOR(Dist_graph_create, 9, PARENT, 0, a8)
CONSTRUCTOR(Dist_graph_create_adjacent, 10, PARENT, 0, a9)
CONSTRUCTOR(Intercomm_create, 6, 0, a4, a5) /* the two sides share no parent */
CONSTRUCTOR(Intercomm_merge, 3, PARENT, 0, a2)

WRAPPED(Comm_idup, 3)
{
    FIND(Comm_idup)
    int status = REAL(3);
    if (status == 0 && profiler_ready()) {
        struct communicator *parent = communicator_of(as_handle(a0));
        request_creates_communicator(handle_at(a2), a1, new_identity(parent->identity, 0, hash_all_members(parent)));
    }
    return status;
}

/* Forgets the handle before MPI frees it: right after, another thread may get the same handle. */
#define DESTRUCTOR(name) \
    WRAPPED(name, 1) \
    { \
        FIND(name) \
        if (a0 != 0 && profiler_ready()) \
            communicator_forget(handle_at(a0)); \
        return REAL(1); \
    }

DESTRUCTOR(Comm_free)
DESTRUCTOR(Comm_disconnect)
