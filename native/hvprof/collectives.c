/* The collectives that this library puts before the real ones. mpi.h is not included: one build serves every ABI. */
#include "communicators.h"
#include "format.h"
#include "operations.h"
#include "profiler.h"
#include "recorder.h"
#include "requests.h"

#define NO_ROOT (-1)
#define NO_REDUCTION (-1)

/* One call, as the rules for its bytes see it. */
struct call {
    const word *arguments;
    struct communicator *communicator;
    bool large; /* its counts are MPI_Count */
};

static int32_t integer(const struct call *c, int argument)
{
    return (int32_t)c->arguments[argument];
}

static int64_t count_at(const struct call *c, int argument)
{
    return c->large ? (int64_t)c->arguments[argument] : integer(c, argument);
}

static int64_t count_in(const struct call *c, int array, int i)
{
    word counts = c->arguments[array];
    return c->large ? ((const int64_t *)counts)[i] : ((const int32_t *)counts)[i];
}

static bool in_place(const struct call *c, int argument)
{
    return c->arguments[argument] == mpi.in_place;
}

/* The ranks that blocks go to or come from: those of the other group, if there is one. */
static int peers(const struct call *c)
{
    return c->communicator->inter ? c->communicator->remote_size : c->communicator->size;
}

static bool is_root(const struct call *c, int argument)
{
    return integer(c, argument) == (c->communicator->inter ? mpi.root : c->communicator->rank);
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
    word reduction = as_handle(c->arguments[argument]);
    return reduction == mpi.bitwise[0] || reduction == mpi.bitwise[1] || reduction == mpi.bitwise[2];
}

static uint64_t one(const struct call *c, int count, int type)
{
    return bytes_of(count_at(c, count), c->arguments[type]);
}

static uint64_t each_same(const struct call *c, int count, int type)
{
    return (uint64_t)peers(c) * one(c, count, type);
}

static uint64_t each_local_same(const struct call *c, int count, int type)
{
    return (uint64_t)c->communicator->size * one(c, count, type);
}

static uint64_t sum_of(const struct call *c, int counts, int type, int members)
{
    int64_t sum = 0;
    for (int i = 0; i < members; i++)
        sum += count_in(c, counts, i);
    return bytes_of(sum, c->arguments[type]);
}

static uint64_t each(const struct call *c, int counts, int type)
{
    return sum_of(c, counts, type, peers(c));
}

static uint64_t each_local(const struct call *c, int counts, int type)
{
    return sum_of(c, counts, type, c->communicator->size);
}

static uint64_t each_neighbour_same(const struct call *c, int count, int type)
{
    return (uint64_t)communicator_neighbours(c->communicator) * one(c, count, type);
}

static uint64_t each_neighbour(const struct call *c, int counts, int type)
{
    return sum_of(c, counts, type, communicator_neighbours(c->communicator));
}

static uint64_t typed(const struct call *c, int counts, int types, int members)
{
    const char *type = (const char *)c->arguments[types];
    uint64_t sum = 0;
    for (int i = 0; i < members; i++, type += mpi.handle_bytes)
        sum += bytes_of(count_in(c, counts, i), handle_at((word)type));
    return sum;
}

/* The buffer that a rank gives its part from; in place, the one where it already lies. */
static word own_part(const struct call *c, int send, int receive)
{
    return c->arguments[in_place(c, send) ? receive : send];
}

/* Looks at a call after it succeeded: only then are its arguments known to be sound. */
static void look_at(struct call *c, struct hvprof_message *message, int communicator, int root)
{
    c->communicator = communicator_of(as_handle(c->arguments[communicator]));
    message->communicator = communicator_index(c->communicator);
    message->ordinal = atomic_fetch_add_explicit(&c->communicator->calls, 1, memory_order_relaxed);
    message->root = root == NO_ROOT ? HVPROF_NO_ROOT : integer(c, root);
}

#define DESCRIBE(is_large, arity, communicator, root_argument, reduction, buffer_rule, bytes_rule) \
    const word arguments[] = {ARGUMENTS_##arity}; \
    struct call call = {.arguments = arguments, .large = is_large}, *c = &call; \
    look_at(c, &message, communicator, root_argument); \
    bool bystander = is_bystander(c, root_argument); \
    message.bytes = bystander ? 0 : (bytes_rule); \
    message.buffer = bystander ? 0 : (buffer_rule); \
    message.flags = is_bitwise(c, reduction) ? HVPROF_BITWISE : 0;

#define BLOCKING(name, find, call_real, is_large, code, arity, ...) \
    WRAPPED(name, arity) \
    { \
        find \
        struct hvprof_message message = {.operation = code, .start_ns = hvprof_now()}; \
        int status = call_real; \
        message.duration_ns = hvprof_now() - message.start_ns; \
        if (status != 0 || !profiler_ready()) \
            return status; \
        DESCRIBE(is_large, arity, __VA_ARGS__) \
        hvprof_append(&message); \
        return status; \
    }

#define STARTED(name, find, call_real, is_large, code, arity, ...) \
    __attribute__((visibility("default"))) int MPI_##name(PARAMETERS_##arity, word request); \
    int MPI_##name(PARAMETERS_##arity, word request) \
    { \
        find \
        void *narrowed = NULL; \
        struct hvprof_message message = {.operation = NON_BLOCKING + code, .start_ns = hvprof_now()}; \
        int status = call_real; \
        if (status != 0 || !profiler_ready()) \
            return status; \
        DESCRIBE(is_large, arity, __VA_ARGS__) \
        request_started(handle_at(request), &message, narrowed); \
        return status; \
    }
#define REAL_STARTED(arity) ((int (*)(PARAMETERS_##arity, word))real)(ARGUMENTS_##arity, request)

#define SMALL_COUNTS(name, i_name, operation_name, code, arity, kinds, ...) \
    BLOCKING(name, FIND(name), REAL(arity), false, code, arity, __VA_ARGS__) \
    STARTED(i_name, FIND(i_name), REAL_STARTED(arity), false, code, arity, __VA_ARGS__)

#ifdef HVPROF_LARGE_COUNTS
#include "large_counts.h"
#define LARGE_COUNTS(name, i_name, operation_name, code, arity, kinds, communicator, root, ...) \
    BLOCKING(name##_c, FIND_LARGE(name), \
             CALL_LARGE(REAL(arity), NULL, kinds, communicator, root, ARGUMENTS_##arity), \
             true, code, arity, communicator, root, __VA_ARGS__) \
    STARTED(i_name##_c, FIND_LARGE(i_name), \
            CALL_LARGE(REAL_STARTED(arity), &narrowed, kinds "-", communicator, root, ARGUMENTS_##arity, request), \
            true, code, arity, communicator, root, __VA_ARGS__)
#else
#define LARGE_COUNTS(...)
#endif

#define WITHOUT_COUNT SMALL_COUNTS
#define COLLECTIVE(...) SMALL_COUNTS(__VA_ARGS__) LARGE_COUNTS(__VA_ARGS__)
#include "collectives.def"
