/* Wraps sends and receives: counts them by size, without records. */
#include "format.h"
#include "operations.h"
#include "profiler.h"
#include "recorder.h"
#include "requests.h"

/*
 * The message to count, once MPI has accepted the arguments. With MPI_PROC_NULL as the other rank,
 * no data moves.
 */
#define COUNTED(operation_code, count, type, peer) \
    struct hvprof_message message = { \
        .operation = operation_code, .communicator = HVPROF_NO_COMMUNICATOR, .only_counted = true}; \
    message.start_ns = start; \
    message.duration_ns = end - start; \
    message.bytes = (int32_t)(peer) == mpi.proc_null ? 0 : bytes_of(count, type);

#define BLOCKING_CALL(name, find, call_real, arity, operation, count, type, peer) \
    WRAPPED(name, arity) \
    { \
        find \
        uint64_t start = hvprof_now(); \
        int status = call_real; \
        uint64_t end = hvprof_now(); \
        if (status != 0 || !profiler_ready()) \
            return status; \
        COUNTED(operation, count, type, peer) \
        hvprof_append(&message); \
        return status; \
    }

#define STARTED_CALL(name, find, call_real, arity, operation, count, type, peer, request) \
    WRAPPED(name, arity) \
    { \
        find \
        uint64_t start = hvprof_now(), end = start; \
        int status = call_real; \
        if (status != 0 || !profiler_ready()) \
            return status; \
        COUNTED(NON_BLOCKING + operation, count, type, peer) \
        request_started(handle_at(request), &message, NULL); \
        return status; \
    }

#ifdef HVPROF_LARGE_COUNTS
#include "large_counts.h"
#define CALL_ONE(kinds, arity) CALL_LARGE(REAL(arity), NULL, kinds, NO_ARGUMENT, NO_ARGUMENT, ARGUMENTS_##arity)
#define LARGE_BLOCKING(name, kinds, arity, operation, count, ...) \
    BLOCKING_CALL(name##_c, FIND_LARGE(name), CALL_ONE(kinds, arity), arity, operation, (int64_t)(count), __VA_ARGS__)
#define LARGE_STARTED(name, kinds, arity, operation, count, ...) \
    STARTED_CALL(name##_c, FIND_LARGE(name), CALL_ONE(kinds, arity), arity, operation, (int64_t)(count), __VA_ARGS__)
#else
#define LARGE_BLOCKING(...)
#define LARGE_STARTED(...)
#endif

/*
 * Wraps MPI_<name>. The parameters: kinds of arguments (large_counts.h), number of arguments,
 * operation; then the arguments for count, type and other rank.
 */
#define BLOCKING(name, kinds, arity, operation, count, ...) \
    BLOCKING_CALL(name, FIND(name), REAL(arity), arity, operation, (int32_t)(count), __VA_ARGS__) \
    LARGE_BLOCKING(name, kinds, arity, operation, count, __VA_ARGS__)
/* The same for a non-blocking call; the last parameter is the argument for the request. */
#define STARTED(name, kinds, arity, operation, count, ...) \
    STARTED_CALL(name, FIND(name), REAL(arity), arity, operation, (int32_t)(count), __VA_ARGS__) \
    LARGE_STARTED(name, kinds, arity, operation, count, __VA_ARGS__)

BLOCKING(Send, "-#----", 6, HVPROF_SEND, a1, a2, a3)
BLOCKING(Ssend, "-#----", 6, HVPROF_SEND, a1, a2, a3)
BLOCKING(Bsend, "-#----", 6, HVPROF_SEND, a1, a2, a3)
BLOCKING(Rsend, "-#----", 6, HVPROF_SEND, a1, a2, a3)
BLOCKING(Recv, "-#-----", 7, HVPROF_RECEIVE, a1, a2, a3)
BLOCKING(Sendrecv, "-#----#-----", 12, HVPROF_SEND_RECEIVE, a1, a2, a3)
BLOCKING(Sendrecv_replace, "-#-------", 9, HVPROF_SEND_RECEIVE, a1, a2, a3)
STARTED(Isend, "-#-----", 7, HVPROF_SEND, a1, a2, a3, a6)
STARTED(Issend, "-#-----", 7, HVPROF_SEND, a1, a2, a3, a6)
STARTED(Ibsend, "-#-----", 7, HVPROF_SEND, a1, a2, a3, a6)
STARTED(Irsend, "-#-----", 7, HVPROF_SEND, a1, a2, a3, a6)
STARTED(Irecv, "-#-----", 7, HVPROF_RECEIVE, a1, a2, a3, a6)

/* A matched receive has no argument for the sender. */
#define SOME_RANK 0
BLOCKING(Mrecv, "-#---", 5, HVPROF_RECEIVE, a1, a2, SOME_RANK)
STARTED(Imrecv, "-#---", 5, HVPROF_RECEIVE, a1, a2, SOME_RANK, a4)
