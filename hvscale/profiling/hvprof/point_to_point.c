/* Sends and receives: counted by size, without records of their own. */
#include "format.h"
#include "operations.h"
#include "profiler.h"
#include "recorder.h"
#include "requests.h"

/* Its end and its bytes, once MPI has accepted the arguments; what goes to or comes from MPI_PROC_NULL moves nothing. */
#define COUNTED(operation_code, count, type, peer) \
    struct hvprof_message message = {.operation = operation_code, .communicator = HVPROF_NO_COMMUNICATOR, .only_counted = true}; \
    message.start_ns = start; \
    message.duration_ns = end - start; \
    message.bytes = (int32_t)(peer) == mpi.proc_null ? 0 : bytes_of((int32_t)(count), type);

#define BLOCKING(name, arity, operation, count, type, peer) \
    WRAPPED(name, arity) \
    { \
        FIND(name) \
        uint64_t start = hvprof_now(); \
        int status = REAL(arity); \
        uint64_t end = hvprof_now(); \
        if (status != 0 || !profiler_ready()) \
            return status; \
        COUNTED(operation, count, type, peer) \
        hvprof_append(&message); \
        return status; \
    }

#define STARTED(name, arity, operation, count, type, peer, request) \
    WRAPPED(name, arity) \
    { \
        FIND(name) \
        uint64_t start = hvprof_now(), end = start; \
        int status = REAL(arity); \
        if (status != 0 || !profiler_ready()) \
            return status; \
        COUNTED(NON_BLOCKING + operation, count, type, peer) \
        request_started(handle_at(request), &message); \
        return status; \
    }

BLOCKING(Send, 6, HVPROF_SEND, a1, a2, a3)
BLOCKING(Ssend, 6, HVPROF_SEND, a1, a2, a3)
BLOCKING(Bsend, 6, HVPROF_SEND, a1, a2, a3)
BLOCKING(Rsend, 6, HVPROF_SEND, a1, a2, a3)
BLOCKING(Recv, 7, HVPROF_RECEIVE, a1, a2, a3)
BLOCKING(Sendrecv, 12, HVPROF_SEND_RECEIVE, a1, a2, a3)
BLOCKING(Sendrecv_replace, 9, HVPROF_SEND_RECEIVE, a1, a2, a3)
STARTED(Isend, 7, HVPROF_SEND, a1, a2, a3, a6)
STARTED(Issend, 7, HVPROF_SEND, a1, a2, a3, a6)
STARTED(Ibsend, 7, HVPROF_SEND, a1, a2, a3, a6)
STARTED(Irsend, 7, HVPROF_SEND, a1, a2, a3, a6)
STARTED(Irecv, 7, HVPROF_RECEIVE, a1, a2, a3, a6)

/* The rank that a message comes from is not among their arguments. */
#define SOME_RANK 0
BLOCKING(Mrecv, 5, HVPROF_RECEIVE, a1, a2, SOME_RANK)
STARTED(Imrecv, 5, HVPROF_RECEIVE, a1, a2, SOME_RANK, a4)
