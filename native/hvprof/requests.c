/* Stores non-blocking calls until a Wait or Test completes their request, and then records them. */
#include "requests.h"

#include <pthread.h>
#include <stdlib.h>

#include "communicators.h"
#include "profiler.h"

enum { BUCKETS = 256, ON_STACK = 32 };

struct pending {
    word request;
    struct hvprof_message message;
    word new_communicator; /* address of the new handle; 0: this is a call to record */
    uint64_t identity;
    void *buffer; /* read by MPI until completion; freed with the entry */
    const void *thread; /* the thread that started the call */
    struct pending *next;
};

static _Thread_local char this_thread; /* its address identifies the thread */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bucket {
    struct pending *first, **end;
} buckets[BUCKETS];
static _Atomic size_t pending_count;

static struct bucket *bucket_of(word request)
{
    return &buckets[request * 0x9E3779B97F4A7C15u >> 56];
}

/*
 * Appends to the bucket: calls that complete immediately may share one request, and `take` returns
 * the oldest first.
 */
static void store(const struct pending *described)
{
    struct pending *new = malloc(sizeof *new);
    if (new == NULL) {
        /* `buffer` stays allocated: MPI still reads it. */
        hvprof_stop_out_of_memory();
        return;
    }
    *new = *described;
    new->thread = &this_thread;
    /*
     * Counted first: another thread with the same request may take the entry immediately, and the
     * count must never be too low.
     */
    atomic_fetch_add_explicit(&pending_count, 1, memory_order_release);
    pthread_mutex_lock(&lock);
    struct bucket *bucket = bucket_of(new->request);
    if (bucket->first == NULL)
        bucket->end = &bucket->first;
    *bucket->end = new;
    bucket->end = &new->next;
    pthread_mutex_unlock(&lock);
}

void request_started(word request, const struct hvprof_message *message, void *buffer)
{
    store(&(struct pending){.request = request, .message = *message, .buffer = buffer});
}

void request_creates_communicator(word request, word new_communicator, uint64_t identity)
{
    store(&(struct pending){.request = request, .new_communicator = new_communicator, .identity = identity});
}

static struct pending *take(word request)
{
    pthread_mutex_lock(&lock);
    struct bucket *bucket = bucket_of(request);
    struct pending **place = NULL;
    /* Prefer a call that this thread started. */
    for (struct pending **at = &bucket->first; *at != NULL; at = &(*at)->next) {
        if ((*at)->request == request && (place == NULL || (*at)->thread == &this_thread))
            place = at;
        if (place != NULL && (*place)->thread == &this_thread)
            break;
    }
    struct pending *found = place != NULL ? *place : NULL;
    if (found != NULL) {
        *place = found->next;
        if (bucket->end == &found->next)
            bucket->end = place;
        atomic_fetch_sub_explicit(&pending_count, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static word request_at(word requests, size_t i)
{
    return handle_at(requests + i * mpi.handle_bytes);
}

/*
 * Copies the requests before a call that may complete some of them, into `on_stack` if they fit.
 * Returns NULL if no recorded call is pending.
 */
static word *copy_requests(size_t count, word requests, word *on_stack)
{
    if (atomic_load_explicit(&pending_count, memory_order_acquire) == 0 || requests == 0 || count > INT32_MAX)
        return NULL;
    word *before = count <= ON_STACK ? on_stack : malloc(count * sizeof *before);
    if (before == NULL)
        hvprof_stop_out_of_memory();
    for (size_t i = 0; before != NULL && i < count; i++)
        before[i] = request_at(requests, i);
    return before;
}

/*
 * Records the calls that have completed. A completed request has become MPI_REQUEST_NULL, whichever
 * call completed it and whatever that call returned.
 */
static void record_completed(size_t count, word requests, word *before, word *on_stack, bool completed)
{
    if (before == NULL)
        return;
    uint64_t now = hvprof_now();
    for (size_t i = 0; i < count; i++) {
        struct pending *ended = request_at(requests, i) != before[i] ? take(before[i]) : NULL;
        if (ended != NULL && ended->new_communicator != 0) {
            communicator_register(ended->identity, handle_at(ended->new_communicator));
        } else if (ended != NULL && completed) {
            /* Another thread may have started this call, with the same request, after `now` was read. */
            uint64_t end = now >= ended->message.start_ns ? now : hvprof_now();
            ended->message.duration_ns = end - ended->message.start_ns;
            hvprof_append(&ended->message);
        }
        if (ended != NULL)
            free(ended->buffer);
        free(ended);
    }
    if (before != on_stack)
        free(before);
}

#define COMPLETION(name, arity, count, requests, completed) \
    WRAPPED(name, arity) \
    { \
        FIND(name) \
        word on_stack[ON_STACK], *before = copy_requests((uint32_t)(count), requests, on_stack); \
        int status = REAL(arity); \
        record_completed((uint32_t)(count), requests, before, on_stack, completed); \
        return status; \
    }

COMPLETION(Wait, 2, 1, a0, true)
COMPLETION(Waitany, 4, a0, a1, true)
COMPLETION(Waitall, 3, a0, a1, true)
COMPLETION(Waitsome, 5, a0, a1, true)
COMPLETION(Test, 3, 1, a0, true)
COMPLETION(Testany, 5, a0, a1, true)
COMPLETION(Testall, 4, a0, a1, true)
COMPLETION(Testsome, 5, a0, a1, true)
COMPLETION(Request_free, 1, 1, a0, false)
