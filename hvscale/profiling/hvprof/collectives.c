/* The MPI_ functions that this library puts before the real ones. mpi.h is not included: one build serves every ABI. */
#include <pthread.h>
#include <stdlib.h>

#include "format.h"
#include "library.h"
#include "recorder.h"

#define NO_ROOT (-1)
#define NO_REDUCTION (-1)

static struct library mpi;
static bool ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(function) first_entry;

/* One call, as the rules for its bytes see it. */
struct call {
    const word *arguments;
    word communicator;
    int size; /* ranks in the communicator; between two groups, in the own one */
};

static int32_t integer(const struct call *c, int argument)
{
    return (int32_t)c->arguments[argument];
}

static bool in_place(const struct call *c, int argument)
{
    return c->arguments[argument] == mpi.in_place;
}

static bool is_inter(const struct call *c)
{
    int inter = 0;
    mpi.comm_test_inter(c->communicator, &inter);
    return inter != 0;
}

/* The ranks that blocks go to or come from: those of the other group, if there is one. */
static int peers(const struct call *c)
{
    int count = c->size;
    if (is_inter(c))
        mpi.comm_remote_size(c->communicator, &count);
    return count;
}

static bool is_root(const struct call *c, int argument)
{
    if (is_inter(c))
        return integer(c, argument) == mpi.root;
    int rank = -1;
    mpi.comm_rank(c->communicator, &rank);
    return integer(c, argument) == rank;
}

/* Between two groups, the ranks beside the root's take part with MPI_PROC_NULL, and their other arguments mean nothing. */
static bool is_bystander(const struct call *c, int argument)
{
    return argument != NO_ROOT && integer(c, argument) == mpi.proc_null;
}

static bool is_bitwise(const struct call *c, int argument)
{
    if (argument == NO_REDUCTION)
        return false;
    /* MPICH's handles are ints: the upper half of the word is undefined. */
    word reduction = mpi.handle_bytes == sizeof(int32_t) ? (uint32_t)c->arguments[argument] : c->arguments[argument];
    return reduction == mpi.bitwise[0] || reduction == mpi.bitwise[1] || reduction == mpi.bitwise[2];
}

static uint64_t bytes_of(int64_t count, word type)
{
    long long size = 0;
    /* With nothing to send a program may pass no real type. */
    if (count > 0)
        mpi.type_size(type, &size);
    return count > 0 && size > 0 ? (uint64_t)count * (uint64_t)size : 0;
}

static uint64_t one(const struct call *c, int count, int type)
{
    return bytes_of(integer(c, count), c->arguments[type]);
}

static uint64_t each_same(const struct call *c, int count, int type)
{
    return (uint64_t)peers(c) * one(c, count, type);
}

static uint64_t each_local_same(const struct call *c, int count, int type)
{
    return (uint64_t)c->size * one(c, count, type);
}

static uint64_t sum_of(const struct call *c, int counts, int type, int members)
{
    const int32_t *array = (const int32_t *)c->arguments[counts];
    int64_t sum = 0;
    for (int i = 0; i < members; i++)
        sum += array[i];
    return bytes_of(sum, c->arguments[type]);
}

static uint64_t each(const struct call *c, int counts, int type)
{
    return sum_of(c, counts, type, peers(c));
}

static uint64_t each_local(const struct call *c, int counts, int type)
{
    return sum_of(c, counts, type, c->size);
}

static uint64_t each_typed(const struct call *c, int counts, int types)
{
    const int32_t *array = (const int32_t *)c->arguments[counts];
    const char *type = (const char *)c->arguments[types];
    uint64_t sum = 0;
    for (int i = 0, members = peers(c); i < members; i++, type += mpi.handle_bytes)
        sum += bytes_of(array[i], mpi.handle_bytes == sizeof(int32_t) ? *(const uint32_t *)type : *(const word *)type);
    return sum;
}

#define COLLECTIVE(name, operation, code, arity, communicator, root, reduction, bytes) [code] = operation,
static const char *const operations[] = {
#include "collectives.def"
};
#undef COLLECTIVE

static void set_up(void)
{
    if (!library_describe(&mpi, atomic_load(&first_entry))) {
        hvprof_say("the MPI library lacks a function that a profile needs (MPI 3.0 or later has them): the job goes on without a profile");
        return;
    }
    int started = 0, rank = 0, size = 0, length = 0;
    mpi.initialized(&started);
    if (!started) {
        hvprof_say("MPI_Init was not called (a session?), so the rank is unknown: the job goes on without a profile");
        return;
    }
    mpi.comm_rank(mpi.world, &rank);
    mpi.comm_size(mpi.world, &size);
    static char version[8192]; /* MPI_MAX_LIBRARY_VERSION_STRING: 256 in Open MPI, 8192 in MPICH */
    mpi.version(version, &length);
    ready = hvprof_open(&(struct hvprof_identity){
        .rank = (uint32_t)rank,
        .world_size = (uint32_t)size,
        .flavour = mpi.flavour,
        .library = version,
        .operations = operations,
        .operation_count = sizeof operations / sizeof *operations,
    });
}

/* Finds a call's communicator and root after it succeeded: only then are its arguments known to be sound. False: nothing is recorded. */
static bool look_at(struct call *c, struct hvprof_message *message, int communicator, int root)
{
    pthread_once(&once, set_up);
    if (!ready)
        return false;
    c->communicator = c->arguments[communicator];
    mpi.comm_size(c->communicator, &c->size);
    message->communicator_size = (uint32_t)c->size;
    message->root = root == NO_ROOT ? HVPROF_NO_ROOT : integer(c, root);
    return true;
}

static function find(_Atomic(function) *known, const char *name, const void *caller)
{
    function found = library_find(name, caller);
    if (found == NULL) {
        hvprof_say("no library in this process has %s: the call cannot be made. Start the job without LD_PRELOAD", name);
        abort();
    }
    atomic_store(&first_entry, found);
    atomic_store_explicit(known, found, memory_order_release);
    return found;
}

#define PARAMETERS_1 word a0
#define PARAMETERS_5 word a0, word a1, word a2, word a3, word a4
#define PARAMETERS_6 PARAMETERS_5, word a5
#define PARAMETERS_7 PARAMETERS_6, word a6
#define PARAMETERS_8 PARAMETERS_7, word a7
#define PARAMETERS_9 PARAMETERS_8, word a8
#define ARGUMENTS_1 a0
#define ARGUMENTS_5 a0, a1, a2, a3, a4
#define ARGUMENTS_6 ARGUMENTS_5, a5
#define ARGUMENTS_7 ARGUMENTS_6, a6
#define ARGUMENTS_8 ARGUMENTS_7, a7
#define ARGUMENTS_9 ARGUMENTS_8, a8

#define COLLECTIVE(name, operation_name, code, arity, communicator, root, reduction, bytes_rule) \
    __attribute__((visibility("default"))) int MPI_##name(PARAMETERS_##arity); \
    int MPI_##name(PARAMETERS_##arity) \
    { \
        static _Atomic(function) known; \
        function real = atomic_load_explicit(&known, memory_order_acquire); \
        if (real == NULL) \
            real = find(&known, "PMPI_" #name, __builtin_return_address(0)); \
        struct hvprof_message message = {.operation = code, .start_ns = hvprof_now()}; \
        int status = ((int (*)(PARAMETERS_##arity))real)(ARGUMENTS_##arity); \
        message.duration_ns = hvprof_now() - message.start_ns; \
        if (status != 0) \
            return status; \
        const word arguments[] = {ARGUMENTS_##arity}; \
        struct call call = {.arguments = arguments}, *c = &call; \
        if (look_at(c, &message, communicator, root)) { \
            message.bytes = is_bystander(c, root) ? 0 : (bytes_rule); \
            message.flags = is_bitwise(c, reduction) ? HVPROF_BITWISE : 0; \
            hvprof_append(&message); \
        } \
        return status; \
    }
#include "collectives.def"
