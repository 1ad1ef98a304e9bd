/*
 * Replaces MPI_Bcast: chooses the algorithm by the decision table, or takes an explicit choice from
 * Python.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broadcast.h"
#include "channel.h"
#include "common/log.h"
#include "data.h"
#include "mpi_abi/init_chain.h"
#include "pipeline.h"
#include "table.h"
#include "trees.h"

const char log_name[] = "hvbcast";

#define TABLE "HVBCAST_TABLE"
#define ALGORITHM "HVBCAST_ALGORITHM"
#define COUNTS "HVBCAST_COUNTS"

struct request {
    void *buffer;
    int64_t count;
    word type;
    int root;
    word communicator;
    uint64_t element; /* bytes of one element */
};

static _Atomic(fn_ptr) mpi_entry; /* a function of the MPI library that the program calls */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;

void *require_memory(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL && count > 0) {
        log_line("out of memory (%zu times %zu bytes): the broadcast cannot be made", count, size);
        abort();
    }
    return memory;
}

static bool counting;
static _Atomic unsigned long long counts[ALGORITHMS];

static void count_one(enum algorithm algorithm)
{
    if (counting)
        counts[algorithm]++;
}

static void log_counts(void)
{
    char line[256];
    size_t used = 0;
    if (!counting)
        return;
    for (enum algorithm i = LIBRARY; i < ALGORITHMS; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s %llu %s", used > 0 ? "," : "", counts[i],
                                 algorithm_name(i));
    log_line("broadcasts of rank 0:%s", line);
}

static void set_up(void)
{
    int started = 0;
    if (!mpi_abi_load(atomic_load(&mpi_entry))) {
        log_line("the MPI library lacks a function of MPI 3.0 that hvbcast needs: broadcasts are left to the library");
        return;
    }
    mpi.initialized(&started);
    if (!started || !channels_start(log_counts)) {
        log_line("MPI_Init was not called (a session?): broadcasts are left to the MPI library");
        return;
    }
    int rank;
    mpi.comm_rank(mpi.comm_world, &rank);
    const char *path = getenv(TABLE), *wrong = path != NULL ? table_read(path) : NULL;
    /* Only rank 0 logs: comparing the tables reveals an invalid table on another rank. */
    if (wrong != NULL && rank == 0)
        log_line("%s=%s: %s: broadcasts are left to the MPI library", TABLE, path, wrong);
    const char *algorithm = getenv(ALGORITHM);
    if (algorithm != NULL && !table_replace(algorithm) && rank == 0)
        log_line("%s=%s: unknown: it is ignored; use off, flat, chain, k-nomial or two-level", ALGORITHM, algorithm);
    counting = rank == 0 && getenv(COUNTS) != NULL;
    ready = true;
}

static bool is_ready(void)
{
    pthread_once(&once, set_up);
    return ready;
}

/*
 * The channel for a call; NULL if MPI must handle the call (invalid or empty), or with MPI's error
 * code in `status`.
 */
static struct channel *channel_for(const struct request *r, int *status)
{
    *status = 0;
    if (r->count <= 0 || r->communicator == mpi.comm_null || r->type == mpi.datatype_null)
        return NULL;
    struct channel *c = channel_of(r->communicator, status);
    return c == NULL || c->size < 2 || r->root < 0 || r->root >= c->size ? NULL : c;
}

/* Fills in the bytes of an element. False if MPI must handle the call. */
static bool set_element_bytes(struct request *r)
{
    long long element = 0;
    if (mpi.type_size(r->type, &element) != 0 || element <= 0)
        return false;
    r->element = (uint64_t)element;
    return true;
}

static int run_tree(const struct channel *c, const struct request *r, const struct choice *choice, struct data *data)
{
    struct tree_place place = {.children = require_memory((size_t)c->size, sizeof *place.children)};
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

static void share_chunk(void *memory, const char *chunk, uint64_t bytes)
{
    node_memory_put(memory, chunk, bytes);
}

/*
 * The nodes form a chain through one rank of each: the root on its node, the first rank elsewhere.
 * That rank shares the data with the others of its node through shared memory.
 */
static int run_two_level(struct channel *c, const struct request *r, const struct choice *choice, struct data *data)
{
    uint64_t bytes = (uint64_t)r->count * r->element;
    int roots_leader = c->leaders[r->root], own_leader = c->leaders[c->rank];
    int relay = own_leader == roots_leader ? r->root : own_leader;
    bool shares = c->memory.size > 1;
    if (shares)
        node_memory_divide(&c->memory, choice->chunk, choice->depth, c->rank == relay);
    if (c->rank != relay) {
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
        .arrived = shares ? share_chunk : NULL,
        .context = &c->memory,
    });
}

/* Broadcasts on an open channel. Returns MPI's error code. */
static int execute(struct channel *c, const struct request *r, struct choice choice)
{
    struct data data;
    bool is_root = c->rank == r->root;
    if (choice.algorithm == TWO_LEVEL && !channel_has_memory(c))
        choice.algorithm = CHAIN;
    count_one(choice.algorithm);
    int status = data_open(&data, r->buffer, r->count, r->type, r->element, is_root, channel_self());
    if (status != 0)
        return status;
    status = choice.algorithm == TWO_LEVEL ? run_two_level(c, r, &choice, &data) : run_tree(c, r, &choice, &data);
    int closed = data_close(&data, status == 0 && !is_root, channel_self());
    return status != 0 ? status : closed;
}

/* Passes an error to the communicator's error handler, as MPI_Bcast does. */
static int finish(int status, word communicator)
{
    if (status != 0)
        mpi.comm_call_errhandler(communicator, status);
    return status;
}

/* Warns, once per reason, if the table may not fit this job. */
static void warn_about_table(const struct channel *c)
{
    static atomic_flag warned_ranks = ATOMIC_FLAG_INIT, warned_library = ATOMIC_FLAG_INIT;
    if (c->rank != 0)
        return;
    if (c->rules.ranks != c->size && !atomic_flag_test_and_set(&warned_ranks))
        log_line("the decision table has no rules for %d ranks: using those for %d", c->size, c->rules.ranks);
    /* Several libraries share MPICH's ABI, and any library may have the standard ABI. */
    bool is_open_mpi = strcmp(mpi.name, "Open MPI") == 0, for_open_mpi = strcmp(table_made_with(), "openmpi") == 0;
    bool is_known = *table_made_with() != '\0' && strcmp(mpi.name, "MPI ABI") != 0;
    if (is_known && is_open_mpi != for_open_mpi && !atomic_flag_test_and_set(&warned_library))
        log_line("the decision table was made with %s, but this is %s: its rules are used anyway", table_made_with(),
                 mpi.name);
}

/*
 * Sets `done` to false if nothing was sent and MPI_Bcast must make the broadcast. That path must
 * have minimal overhead.
 */
static int broadcast_by_rule(struct channel *c, struct request *r, bool *done)
{
    if ((c->compared && !c->rules.any_own_algorithm) || !set_element_bytes(r))
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
    warn_about_table(c);
    *done = choice.algorithm != LIBRARY;
    return *done ? execute(c, r, choice) : 0;
}

static int broadcast_by_table(struct request *r, bool *done)
{
    int status;
    struct channel *c = channel_for(r, &status);
    *done = status != 0;
    if (c != NULL)
        status = broadcast_by_rule(c, r, done);
    return *done ? finish(status, r->communicator) : 0;
}

static fn_ptr find_once(_Atomic(fn_ptr) *known, const char *name, const void *caller)
{
    fn_ptr entry = atomic_load_explicit(known, memory_order_acquire);
    if (entry == NULL) {
        entry = require_fn(mpi_find(name, caller), name);
        atomic_store(&mpi_entry, entry);
        atomic_store_explicit(known, entry, memory_order_release);
    }
    return entry;
}

/* Runs after MPI_Init, so that a warning about different tables comes before the job starts. */
static void compare_tables(const void *caller)
{
    static _Atomic(fn_ptr) known;
    int status;
    find_once(&known, "PMPI_Bcast", caller);
    struct channel *all = is_ready() ? channel_of(mpi.comm_world, &status) : NULL;
    if (all != NULL && all->size > 1)
        channel_compare(all);
}

const struct init_hooks init_hooks = {.after = compare_tables};

static int32_t as_int(word argument)
{
    return (int32_t)argument;
}

static bool handled_by_table(word buffer, int64_t count, word type, word root, word communicator, int *status)
{
    if (!is_ready())
        return false;
    struct request request = {(void *)buffer, count, as_handle(type), as_int(root), as_handle(communicator), 0};
    bool done;
    *status = broadcast_by_table(&request, &done);
    if (!done)
        count_one(LIBRARY);
    return done;
}

typedef int (*bcast_function)(word, word, word, word, word);

/*
 * hvprof's MPI_Bcast and MPI_Bcast_c if hvprof is preloaded, before or after this library; else
 * NULL. They record the call and make it with hvscale_PMPI_Bcast and hvscale_PMPI_Bcast_c below.
 */
static struct {
    bcast_function bcast, bcast_c;
} profiler;

static bcast_function find_in_object(const char *name, const void *base)
{
    void *candidates[] = {dlsym(RTLD_DEFAULT, name), dlsym(RTLD_NEXT, name)};
    bcast_function found = NULL;
    Dl_info object;
    for (int i = 0; i < 2; i++)
        if (candidates[i] != NULL && dladdr(candidates[i], &object) != 0 && object.dli_fbase == base)
            memcpy(&found, &candidates[i], sizeof found);
    return found;
}

static void find_profiler(void)
{
    void *step = dlsym(RTLD_DEFAULT, "hvprof_step");
    Dl_info object;
    if (step == NULL || dladdr(step, &object) == 0)
        return;
    profiler.bcast = find_in_object("MPI_Bcast", object.dli_fbase);
    profiler.bcast_c = find_in_object("MPI_Bcast_c", object.dli_fbase);
}

static void find_profiler_once(void)
{
    static pthread_once_t once_only = PTHREAD_ONCE_INIT;
    pthread_once(&once_only, find_profiler);
}

static int bcast(word buffer, word count, word type, word root, word communicator, const void *caller)
{
    static _Atomic(fn_ptr) known;
    fn_ptr library = find_once(&known, "PMPI_Bcast", caller);
    int status;
    if (handled_by_table(buffer, as_int(count), type, root, communicator, &status))
        return status;
    return ((bcast_function)library)(buffer, count, type, root, communicator);
}

/* Called by hvprof to make the broadcast. */
EXPORTED int hvscale_PMPI_Bcast(word buffer, word count, word type, word root, word communicator);
int hvscale_PMPI_Bcast(word buffer, word count, word type, word root, word communicator)
{
    return bcast(buffer, count, type, root, communicator, __builtin_return_address(0));
}

EXPORTED int MPI_Bcast(word buffer, word count, word type, word root, word communicator);
int MPI_Bcast(word buffer, word count, word type, word root, word communicator)
{
    find_profiler_once();
    if (profiler.bcast != NULL)
        return profiler.bcast(buffer, count, type, root, communicator);
    return bcast(buffer, count, type, root, communicator, __builtin_return_address(0));
}

/*
 * Serves an MPI library without large counts: mpi4py calls MPI_Bcast_c if it finds one, and it
 * finds this library's.
 */
static int bcast_by_int(word buffer, int64_t count, word type, word root, word communicator, bcast_function call)
{
    word repeated;
    if (count <= INT_MAX)
        return call(buffer, (word)count, type, root, communicator);
    int status = data_repeated_type(count, type, &repeated);
    if (status == 0)
        status = call(buffer, 1, repeated, root, communicator);
    if (status == 0)
        mpi.type_free(&repeated);
    return status;
}

/* `call` makes the broadcast if the MPI library has no MPI_Bcast_c. */
static int bcast_c(word buffer, word count, word type, word root, word communicator, const void *caller,
                   bcast_function call)
{
    static _Atomic(fn_ptr) known;
    find_once(&known, "PMPI_Bcast", caller);
    int status;
    if (!is_ready() || mpi.bcast_c == NULL)
        return bcast_by_int(buffer, (int64_t)count, type, root, communicator, call);
    if (handled_by_table(buffer, (int64_t)count, type, root, communicator, &status))
        return status;
    return mpi.bcast_c(buffer, count, type, root, communicator);
}

EXPORTED int hvscale_PMPI_Bcast_c(word buffer, word count, word type, word root, word communicator);
int hvscale_PMPI_Bcast_c(word buffer, word count, word type, word root, word communicator)
{
    return bcast_c(buffer, count, type, root, communicator, __builtin_return_address(0), hvscale_PMPI_Bcast);
}

/* Called by programs with large counts, such as mpi4py. */
EXPORTED int MPI_Bcast_c(word buffer, word count, word type, word root, word communicator);
int MPI_Bcast_c(word buffer, word count, word type, word root, word communicator)
{
    find_profiler_once();
    if (profiler.bcast_c != NULL)
        return profiler.bcast_c(buffer, count, type, root, communicator);
    return bcast_c(buffer, count, type, root, communicator, __builtin_return_address(0), MPI_Bcast);
}

enum { LEFT_TO_MPI = -1, INVALID_CHOICE = -2 };

/*
 * Broadcasts with an explicit choice, which must be the same on all ranks. Returns MPI's error
 * code, LEFT_TO_MPI if the caller must call MPI_Bcast, or INVALID_CHOICE.
 */
EXPORTED int hvbcast_broadcast(void *buffer, int64_t count, word type, int root, word communicator,
                               const char *algorithm, uint64_t chunk, int depth, int radix);
int hvbcast_broadcast(void *buffer, int64_t count, word type, int root, word communicator, const char *algorithm,
                      uint64_t chunk, int depth, int radix)
{
    static _Atomic(fn_ptr) known;
    find_once(&known, "PMPI_Bcast", __builtin_return_address(0));
    struct choice choice = {.algorithm = algorithm_named(algorithm), .chunk = chunk, .depth = depth, .radix = radix};
    int status;
    if (!choice_valid(&choice))
        return INVALID_CHOICE;
    if (!is_ready() || choice.algorithm == LIBRARY)
        return LEFT_TO_MPI;
    struct request request = {buffer, count, as_handle(type), root, as_handle(communicator), 0};
    struct channel *c = channel_for(&request, &status);
    if (status == 0 && (c == NULL || !set_element_bytes(&request)))
        return LEFT_TO_MPI;
    if (status == 0)
        status = channel_open(c);
    return finish(status != 0 ? status : execute(c, &request, choice), request.communicator);
}

/*
 * From now on, large broadcasts use this algorithm, or MPI_Bcast for "off"; "" returns to the table.
 * All ranks must call it at the same point between their broadcasts, and no broadcast may be in
 * flight. Returns 0, LEFT_TO_MPI if all broadcasts are left to MPI anyway, or INVALID_CHOICE for an
 * unknown name.
 */
EXPORTED int hvbcast_use(const char *algorithm);
int hvbcast_use(const char *algorithm)
{
    if (atomic_load(&mpi_entry) == NULL || !is_ready())
        return LEFT_TO_MPI;
    if (!table_replace(algorithm))
        return INVALID_CHOICE;
    channels_forget_rules();
    return 0;
}
