/* The broadcast itself, and the two ways to it: in front of MPI_Bcast, by the decision table, and by an explicit choice. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broadcast.h"
#include "calls.h"
#include "channel.h"
#include "data.h"
#include "pipeline.h"
#include "say.h"
#include "table.h"
#include "trees.h"

#define TABLE "HVBCAST_TABLE"
#define COUNTS "HVBCAST_COUNTS"

struct request {
    void *buffer;
    int64_t count;
    word type;
    int root;
    word communicator;
    uint64_t element; /* bytes */
};

static _Atomic(function) library_entry;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;

static bool counting;
static _Atomic unsigned long long counts[ALGORITHMS];

static void count_one(enum algorithm algorithm)
{
    if (counting)
        counts[algorithm]++;
}

static void say_counts(void)
{
    char line[256];
    size_t used = 0;
    if (!counting)
        return;
    for (enum algorithm i = LIBRARY; i < ALGORITHMS; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s %llu %s", used > 0 ? "," : "", counts[i], algorithm_name(i));
    say("broadcasts of rank 0:%s", line);
}

static void set_up(void)
{
    int started = 0;
    if (!calls_find(atomic_load(&library_entry))) {
        say("the MPI library lacks a function that a broadcast needs (MPI 3.0 or later has them): broadcasts are left to it");
        return;
    }
    mpi.initialized(&started);
    if (!started || !channels_start(say_counts)) {
        say("MPI_Init was not called (a session?): broadcasts are left to the MPI library");
        return;
    }
    int rank;
    mpi.comm_rank(mpi.world, &rank);
    const char *path = getenv(TABLE), *wrong = path != NULL ? table_read(path) : NULL;
    /* Said once; where it is another rank's alone, comparing tables tells. */
    if (wrong != NULL && rank == 0)
        say("%s=%s: %s: broadcasts are left to the MPI library", TABLE, path, wrong);
    counting = rank == 0 && getenv(COUNTS) != NULL;
    ready = true;
}

static bool is_ready(void)
{
    pthread_once(&once, set_up);
    return ready;
}

/* NULL for what the library is to judge, or has nothing to do for; with MPI's error code in `status`. */
static struct channel *channel_for(const struct request *r, int *status)
{
    *status = 0;
    if (r->count <= 0 || r->communicator == mpi.no_communicator || r->type == mpi.no_type)
        return NULL;
    struct channel *c = channel_of(r->communicator, status);
    return c == NULL || c->size < 2 || r->root < 0 || r->root >= c->size ? NULL : c;
}

/* Fills in the bytes of an element. False for what is the library's, too. */
static bool measure(struct request *r)
{
    long long element = 0;
    if (mpi.type_size(r->type, &element) != 0 || element <= 0)
        return false;
    r->element = (uint64_t)element;
    return true;
}

static int tree(const struct channel *c, const struct request *r, const struct choice *choice, struct data *data)
{
    struct place place = {.children = needed_memory((size_t)c->size, sizeof *place.children)};
    tree_place(choice->algorithm, choice->radix, (c->rank - r->root + c->size) % c->size, c->size, &place);
    for (int i = 0; i < place.count; i++)
        place.children[i] = (place.children[i] + r->root) % c->size;
    int status = pipeline_run(&(struct pipeline){
        .communicator = c->messages,
        .from = place.parent < 0 ? -1 : (place.parent + r->root) % c->size,
        .to = place.children,
        .receivers = place.count,
        .data = data->bytes,
        .bytes = (uint64_t)r->count * r->element,
        .chunk = choice->chunk,
        .depth = choice->depth,
    });
    free(place.children);
    return status;
}

static void put(void *memory, const char *chunk, uint64_t bytes)
{
    node_memory_put(memory, chunk, bytes);
}

/* Nodes in a chain, from one rank of each to one of the next: the root on its own, elsewhere the first; each shares what it gets with the
 * others of its node. */
static int two_level(struct channel *c, const struct request *r, const struct choice *choice, struct data *data)
{
    uint64_t bytes = (uint64_t)r->count * r->element;
    int roots_leader = c->leaders[r->root], own_leader = c->leaders[c->rank];
    int speaker = own_leader == roots_leader ? r->root : own_leader;
    bool shares = c->memory.size > 1;
    if (shares)
        node_memory_divide(&c->memory, choice->chunk, choice->depth, c->rank == speaker);
    if (c->rank != speaker) {
        for (uint64_t i = 0; i < chunks_of(bytes, choice->chunk); i++)
            node_memory_take(&c->memory, data->bytes + i * choice->chunk, bytes_of_chunk(bytes, choice->chunk, i));
        return 0;
    }
    int own = 0, roots = 0, next;
    while (c->nodes[own] != own_leader)
        own++;
    while (c->nodes[roots] != roots_leader)
        roots++;
    int number = (own - roots + c->node_count) % c->node_count;
    next = c->nodes[(own + 1) % c->node_count];
    int before = c->nodes[(own + c->node_count - 1) % c->node_count];
    return pipeline_run(&(struct pipeline){
        .communicator = c->messages,
        .from = number == 0 ? -1 : number == 1 ? r->root : before,
        .to = &next,
        .receivers = number + 1 < c->node_count ? 1 : 0,
        .data = data->bytes,
        .bytes = bytes,
        .chunk = choice->chunk,
        .depth = choice->depth,
        .arrived = shares ? put : NULL,
        .context = &c->memory,
    });
}

/* On an open channel. Gives MPI's error code. */
static int carry_out(struct channel *c, const struct request *r, struct choice choice)
{
    struct data data;
    bool is_root = c->rank == r->root;
    if (choice.algorithm == TWO_LEVEL && !channel_has_memory(c))
        choice.algorithm = CHAIN;
    count_one(choice.algorithm);
    int status = data_open(&data, r->buffer, r->count, r->type, r->element, is_root, channel_own());
    if (status != 0)
        return status;
    status = choice.algorithm == TWO_LEVEL ? two_level(c, r, &choice, &data) : tree(c, r, &choice, &data);
    int closed = data_close(&data, status == 0 && !is_root, channel_own());
    return status != 0 ? status : closed;
}

/* The library's words for an error, as its own broadcast would have them. */
static int ended(int status, word communicator)
{
    if (status != 0)
        calls.comm_call_errhandler(communicator, status);
    return status;
}

/* What makes the table's rules less than certain here, once each. */
static void say_doubts(const struct channel *c)
{
    static atomic_flag said_ranks = ATOMIC_FLAG_INIT, said_library = ATOMIC_FLAG_INIT;
    if (c->rank != 0)
        return;
    if (c->rules.ranks != c->size && !atomic_flag_test_and_set(&said_ranks))
        say("the decision table has no rules for %d ranks: taking those for %d", c->size, c->rules.ranks);
    /* Whose library it is that has MPICH's ABI, or MPI's own, cannot be told. */
    bool is_open_mpi = strcmp(mpi.flavour, "Open MPI") == 0, for_open_mpi = strcmp(table_made_with(), "openmpi") == 0;
    if (strcmp(mpi.flavour, "MPI ABI") != 0 && is_open_mpi != for_open_mpi && !atomic_flag_test_and_set(&said_library))
        say("the decision table was made with %s, and this is %s: its rules are taken all the same", table_made_with(), mpi.flavour);
}

/* `done` false: nothing has been sent, the library is to do it; that is to cost as little as can be. */
static int by_rule(struct channel *c, struct request *r, bool *done)
{
    if ((c->compared && !c->rules.ours) || !measure(r))
        return 0;
    uint64_t bytes = (uint64_t)r->count * r->element;
    int status = channel_compare(c);
    if (status == 0 && !table_may_choose(&c->rules, bytes))
        return 0;
    *done = true;
    if (status == 0)
        status = channel_open(c);
    if (status != 0)
        return status;
    struct choice choice = table_choose(&c->rules, c->ranks_per_node, bytes);
    say_doubts(c);
    *done = choice.algorithm != LIBRARY;
    return *done ? carry_out(c, r, choice) : 0;
}

static int by_table(struct request *r, bool *done)
{
    int status;
    struct channel *c = channel_for(r, &status);
    *done = status != 0;
    if (c != NULL)
        status = by_rule(c, r, done);
    return *done ? ended(status, r->communicator) : 0;
}

static function found(_Atomic(function) *known, const char *name, const void *caller)
{
    function entry = atomic_load_explicit(known, memory_order_acquire);
    if (entry == NULL) {
        entry = needed(library_find(name, caller), name);
        atomic_store(&library_entry, entry);
        atomic_store_explicit(known, entry, memory_order_release);
    }
    return entry;
}

void broadcast_compare_tables(const void *caller)
{
    static _Atomic(function) known;
    int status;
    found(&known, "PMPI_Bcast", caller);
    struct channel *all = is_ready() ? channel_of(mpi.world, &status) : NULL;
    if (all != NULL && all->size > 1)
        channel_compare(all);
}

static int32_t as_int(word argument)
{
    return (int32_t)argument;
}

static bool by_table_of(word buffer, int64_t count, word type, word root, word communicator, int *status)
{
    if (!is_ready())
        return false;
    struct request request = {(void *)buffer, count, as_handle(type), as_int(root), as_handle(communicator), 0};
    bool done;
    *status = by_table(&request, &done);
    if (!done)
        count_one(LIBRARY);
    return done;
}

typedef int (*bcast_function)(word, word, word, word, word);

/* hvprof's own, where that is preloaded, before this library or behind it: they call hvscale_PMPI_Bcast and hvscale_PMPI_Bcast_c. NULL without it,
 * and where it has no such function. */
static struct {
    bcast_function bcast, bcast_c;
} profiler;

static bcast_function of_object(const char *name, const void *base)
{
    void *candidates[] = {dlsym(RTLD_DEFAULT, name), dlsym(RTLD_NEXT, name)};
    bcast_function found = NULL;
    Dl_info object;
    for (int i = 0; i < 2; i++)
        if (candidates[i] != NULL && dladdr(candidates[i], &object) != 0 && object.dli_fbase == base)
            memcpy(&found, &candidates[i], sizeof found);
    return found;
}

static void look_for_profiler(void)
{
    void *step = dlsym(RTLD_DEFAULT, "hvprof_step");
    Dl_info object;
    if (step == NULL || dladdr(step, &object) == 0)
        return;
    profiler.bcast = of_object("MPI_Bcast", object.dli_fbase);
    profiler.bcast_c = of_object("MPI_Bcast_c", object.dli_fbase);
}

static void profiler_first(void)
{
    static pthread_once_t looked = PTHREAD_ONCE_INIT;
    pthread_once(&looked, look_for_profiler);
}

static int bcast(word buffer, word count, word type, word root, word communicator, const void *caller)
{
    static _Atomic(function) known;
    function library = found(&known, "PMPI_Bcast", caller);
    int status;
    if (by_table_of(buffer, as_int(count), type, root, communicator, &status))
        return status;
    return ((bcast_function)library)(buffer, count, type, root, communicator);
}

/* What hvprof makes its call with. */
EXPORTED int hvscale_PMPI_Bcast(word buffer, word count, word type, word root, word communicator);
int hvscale_PMPI_Bcast(word buffer, word count, word type, word root, word communicator)
{
    return bcast(buffer, count, type, root, communicator, __builtin_return_address(0));
}

EXPORTED int MPI_Bcast(word buffer, word count, word type, word root, word communicator);
int MPI_Bcast(word buffer, word count, word type, word root, word communicator)
{
    profiler_first();
    if (profiler.bcast != NULL)
        return profiler.bcast(buffer, count, type, root, communicator);
    return bcast(buffer, count, type, root, communicator, __builtin_return_address(0));
}

/* For a library without large counts: mpi4py takes MPI_Bcast_c where it finds one, and finds ours. */
static int bcast_by_int(word buffer, int64_t count, word type, word root, word communicator, bcast_function call)
{
    word repeated;
    if (count <= INT_MAX)
        return call(buffer, (word)count, type, root, communicator);
    int status = data_repeat(count, type, &repeated);
    if (status == 0)
        status = call(buffer, 1, repeated, root, communicator);
    if (status == 0)
        calls.type_free(&repeated);
    return status;
}

/* `call`: what makes it where the library has none with a large count. */
static int bcast_c(word buffer, word count, word type, word root, word communicator, const void *caller, bcast_function call)
{
    static _Atomic(function) known;
    found(&known, "PMPI_Bcast", caller);
    int status;
    if (!is_ready() || calls.bcast_c == NULL)
        return bcast_by_int(buffer, (int64_t)count, type, root, communicator, call);
    if (by_table_of(buffer, (int64_t)count, type, root, communicator, &status))
        return status;
    return calls.bcast_c(buffer, count, type, root, communicator);
}

EXPORTED int hvscale_PMPI_Bcast_c(word buffer, word count, word type, word root, word communicator);
int hvscale_PMPI_Bcast_c(word buffer, word count, word type, word root, word communicator)
{
    return bcast_c(buffer, count, type, root, communicator, __builtin_return_address(0), hvscale_PMPI_Bcast);
}

/* With a large count, as mpi4py calls it. */
EXPORTED int MPI_Bcast_c(word buffer, word count, word type, word root, word communicator);
int MPI_Bcast_c(word buffer, word count, word type, word root, word communicator)
{
    profiler_first();
    if (profiler.bcast_c != NULL)
        return profiler.bcast_c(buffer, count, type, root, communicator);
    return bcast_c(buffer, count, type, root, communicator, __builtin_return_address(0), MPI_Bcast);
}

enum { LEFT = -1, INVALID = -2 };

/* By an explicit choice, the same in all ranks. Gives MPI's error code, LEFT for what is the library's, INVALID for a choice that cannot be. */
EXPORTED int hvbcast_broadcast(void *buffer, int64_t count, word type, int root, word communicator, const char *algorithm, uint64_t chunk,
                               int depth, int radix);
int hvbcast_broadcast(void *buffer, int64_t count, word type, int root, word communicator, const char *algorithm, uint64_t chunk, int depth,
                      int radix)
{
    static _Atomic(function) known;
    found(&known, "PMPI_Bcast", __builtin_return_address(0));
    struct choice choice = {.algorithm = algorithm_named(algorithm), .chunk = chunk, .depth = depth, .radix = radix};
    int status;
    if (!choice_valid(&choice))
        return INVALID;
    if (!is_ready() || choice.algorithm == LIBRARY)
        return LEFT;
    struct request request = {buffer, count, as_handle(type), root, as_handle(communicator), 0};
    struct channel *c = channel_for(&request, &status);
    if (status == 0 && (c == NULL || !measure(&request)))
        return LEFT;
    if (status == 0)
        status = channel_open(c);
    return ended(status != 0 ? status : carry_out(c, &request, choice), request.communicator);
}
