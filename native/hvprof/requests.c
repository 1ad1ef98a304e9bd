/* Keeps non-blocking calls until a Wait or Test completes their request, and records them then. */
#include "requests.h"

#include <pthread.h>
#include <stdlib.h>

#include "communicators.h"
#include "profiler.h"

enum { BUCKETS = 256, FEW = 32 };

struct pending {
    word request;
    struct hvprof_message message;
    word new_communicator; /* where its handle will be stored; 0: this is a call to record */
    uint64_t identity;
    void *buffer; /* that MPI reads until completion; freed with the entry */
    const void *thread; /* that started the call */
    struct pending *next;
};

static _Thread_local char this_thread; /* its address identifies the thread */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bucket {
    struct pending *first, **end;
} buckets[BUCKETS];
static _Atomic size_t waiting;

static struct bucket *bucket_of(word request)
{
    return &buckets[request * 0x9E3779B97F4A7C15u >> 56];
}

/*
 * Appends to the bucket: calls that complete immediately may share one request, and the oldest is
 * taken first.
 */
static void enter(const struct pending *described)
{
    struct pending *new = malloc(sizeof *new);
    if (new == NULL) {
        /* `buffer` stays allocated: MPI still reads it. */
        hvprof_stop_without_memory();
        return;
    }
    *new = *described;
    new->thread = &this_thread;
    /*
     * Counted first: another thread with the same request may take the entry at once, and the count
     * must never be too low.
     */
    atomic_fetch_add_explicit(&waiting, 1, memory_order_release);
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
    enter(&(struct pending){.request = request, .message = *message, .buffer = buffer});
}

void request_creates_communicator(word request, word new_communicator, uint64_t identity)
{
    enter(&(struct pending){.request = request, .new_communicator = new_communicator, .identity = identity});
}

static struct pending *take(word request)
{
    pthread_mutex_lock(&lock);
    struct bucket *bucket = bucket_of(request);
    struct pending **place = NULL;
    /* Prefers one that this thread started. */
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
        atomic_fetch_sub_explicit(&waiting, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static word request_at(word requests, size_t i)
{
    return handle_at(requests + i * mpi.handle_bytes);
}

/*
 * Copies the requests before a call that may complete some of them, into `few` if they fit. NULL if
 * none of the pending calls is ours.
 */
static word *copy(size_t count, word requests, word *few)
{
    if (atomic_load_explicit(&waiting, memory_order_acquire) == 0 || requests == 0 || count > INT32_MAX)
        return NULL;
    word *before = count <= FEW ? few : malloc(count * sizeof *before);
    if (before == NULL)
        hvprof_stop_without_memory();
    for (size_t i = 0; before != NULL && i < count; i++)
        before[i] = request_at(requests, i);
    return before;
}

/*
 * A completed request has become MPI_REQUEST_NULL, whichever call completed it and whatever that
 * call returned.
 */
static void compare(size_t count, word requests, word *before, word *few, bool completed)
{
    if (before == NULL)
        return;
    uint64_t now = hvprof_now();
    for (size_t i = 0; i < count; i++) {
        struct pending *ended = request_at(requests, i) != before[i] ? take(before[i]) : NULL;
        if (ended != NULL && ended->new_communicator != 0) {
            communicator_enter(ended->identity, handle_at(ended->new_communicator));
        } else if (ended != NULL && completed) {
            ended->message.duration_ns = now - ended->message.start_ns;
            hvprof_append(&ended->message);
        }
        if (ended != NULL)
            free(ended->buffer);
        free(ended);
    }
    if (before != few)
        free(before);
}

#define COMPLETION(name, arity, count, requests, completed) \
    WRAPPED(name, arity) \
    { \
        FIND(name) \
        word few[FEW], *before = copy((uint32_t)(count), requests, few); \
        int status = REAL(arity); \
        compare((uint32_t)(count), requests, before, few, completed); \
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
