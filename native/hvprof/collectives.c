/*
 * Wraps every MPI collective in collectives.def: calls the real function and records time, bytes
 * and buffer.
 */
#include "communicators.h"
#include "format.h"
#include "operations.h"
#include "profiler.h"
#include "recorder.h"
#include "requests.h"

#define NO_ROOT (-1)
#define NO_REDUCTION (-1)

/* A call, as the rules in collectives.def use it. */
struct call {
    const word *arguments;
    struct communicator *communicator;
    bool large; /* the counts are MPI_Count */
};

static word argument(const struct call *c, int number)
{
    return c->arguments[number];
}

static int32_t integer(const struct call *c, int number)
{
    return (int32_t)c->arguments[number];
}

static int64_t count_at(const struct call *c, int number)
{
    return c->large ? (int64_t)c->arguments[number] : integer(c, number);
}

static int64_t count_in(const struct call *c, int array, int i)
{
    word counts = c->arguments[array];
    return c->large ? ((const int64_t *)counts)[i] : ((const int32_t *)counts)[i];
}

static bool in_place(const struct call *c, int number)
{
    return c->arguments[number] == mpi.in_place;
}

/* The number of ranks to exchange blocks with: those of the remote group, if there is one. */
static int peers(const struct call *c)
{
    return c->communicator->inter ? c->communicator->remote_size : c->communicator->size;
}

static bool is_root(const struct call *c, int number)
{
    return integer(c, number) == (c->communicator->inter ? mpi.root : c->communicator->rank);
}

/*
 * Whether this rank is the root of a call on an inter-communicator: it has no part of its own, and
 * the arguments for one are undefined.
 */
static bool is_far_root(const struct call *c, int number)
{
    return c->communicator->inter && is_root(c, number);
}

/*
 * Whether this rank takes no part: in the root's group of an inter-communicator, all ranks but the
 * root pass MPI_PROC_NULL, and their other arguments are undefined.
 */
static bool is_bystander(const struct call *c, int number)
{
    return number != NO_ROOT && integer(c, number) == mpi.proc_null;
}

static bool is_bitwise(const struct call *c, int number)
{
    if (number == NO_REDUCTION)
        return false;
    word reduction = as_handle(c->arguments[number]);
    return reduction == mpi.bitwise_ops[0] || reduction == mpi.bitwise_ops[1] || reduction == mpi.bitwise_ops[2];
}

/*
 * Rules for bytes. A block is a count of elements of one type. per_... is the sum of the blocks for
 * all peers, for all members of the own group, or for all neighbors that this rank receives from.
 * _v: the counts are in an array. _w: the types are, too.
 */

static uint64_t block(const struct call *c, int count, int type)
{
    return bytes_of(count_at(c, count), c->arguments[type]);
}

static uint64_t per_peer(const struct call *c, int count, int type)
{
    return (uint64_t)peers(c) * block(c, count, type);
}

static uint64_t per_member(const struct call *c, int count, int type)
{
    return (uint64_t)c->communicator->size * block(c, count, type);
}

static uint64_t per_neighbor(const struct call *c, int count, int type)
{
    return (uint64_t)communicator_neighbours(c->communicator) * block(c, count, type);
}

static uint64_t sum_v(const struct call *c, int counts, int type, int blocks)
{
    int64_t sum = 0;
    for (int i = 0; i < blocks; i++)
        sum += count_in(c, counts, i);
    return bytes_of(sum, c->arguments[type]);
}

static uint64_t per_peer_v(const struct call *c, int counts, int type)
{
    return sum_v(c, counts, type, peers(c));
}

static uint64_t per_member_v(const struct call *c, int counts, int type)
{
    return sum_v(c, counts, type, c->communicator->size);
}

static uint64_t per_neighbor_v(const struct call *c, int counts, int type)
{
    return sum_v(c, counts, type, communicator_neighbours(c->communicator));
}

static uint64_t sum_w(const struct call *c, int counts, int types, int blocks)
{
    const char *type = (const char *)c->arguments[types];
    uint64_t sum = 0;
    for (int i = 0; i < blocks; i++, type += mpi.handle_bytes)
        sum += bytes_of(count_in(c, counts, i), handle_at((word)type));
    return sum;
}

static uint64_t per_peer_w(const struct call *c, int counts, int types)
{
    return sum_w(c, counts, types, peers(c));
}

static uint64_t per_neighbor_w(const struct call *c, int counts, int types)
{
    return sum_w(c, counts, types, communicator_neighbours(c->communicator));
}

/* The buffer with this rank's contribution: the receive buffer if the call is in place. */
static word own_part(const struct call *c, int send, int receive)
{
    return c->arguments[in_place(c, send) ? receive : send];
}

/* The same for a gather or reduction to a root: a far root has only the receive buffer. */
static word own_part_or_result(const struct call *c, int send, int receive, int root)
{
    return is_far_root(c, root) ? argument(c, receive) : own_part(c, send, receive);
}

/* Called only after MPI returned success, which shows that the arguments are valid. */
static void describe(struct call *c, struct hvprof_message *message, int communicator, int root)
{
    c->communicator = communicator_of(as_handle(c->arguments[communicator]));
    message->communicator = communicator_index(c->communicator);
    message->ordinal = atomic_fetch_add_explicit(&c->communicator->calls, 1, memory_order_relaxed);
    message->root = root == NO_ROOT ? HVPROF_NO_ROOT : integer(c, root);
}

#define DESCRIBE(is_large, arity, communicator, root, reduction, buffer_rule, bytes_rule) \
    const word arguments[] = {ARGUMENTS_##arity}; \
    struct call call = {.arguments = arguments, .large = is_large}, *c = &call; \
    describe(c, &message, communicator, root); \
    bool bystander = is_bystander(c, root); \
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
    EXPORTED int MPI_##name(PARAMETERS_##arity, word request); \
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

#define COLLECTIVE_WITHOUT_COUNT(...) SMALL_COUNTS(__VA_ARGS__)
#define COLLECTIVE(...) SMALL_COUNTS(__VA_ARGS__) LARGE_COUNTS(__VA_ARGS__)
#include "collectives.def"
