#include "requests.h"

#include <pthread.h>
#include <stdlib.h>

#include "communicators.h"
#include "profiler.h"

enum { BUCKETS = 256, FEW = 32 };

struct pending {
    word request;
    struct hvprof_message message;
    word made; /* where the new communicator's handle will stand; 0: this is a collective */
    uint64_t identity;
    void *needed; /* freed with the entry */
    const void *thread; /* that started it */
    struct pending *next;
};

static _Thread_local char this_thread; /* its address tells threads apart */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bucket {
    struct pending *first, **end;
} buckets[BUCKETS];
static _Atomic size_t waiting;

static struct bucket *bucket_of(word request)
{
    return &buckets[request * 0x9E3779B97F4A7C15u >> 56];
}

/* At the end of its bucket: calls that complete at once may all get the same request, and the oldest is taken first. */
static void enter(const struct pending *described)
{
    struct pending *new = malloc(sizeof *new);
    if (new == NULL)
        return;
    *new = *described;
    new->thread = &this_thread;
    /* Before the entry: another thread may hold the same request and take it at once, and the count must never be too low. */
    atomic_fetch_add_explicit(&waiting, 1, memory_order_release);
    pthread_mutex_lock(&lock);
    struct bucket *bucket = bucket_of(new->request);
    if (bucket->first == NULL)
        bucket->end = &bucket->first;
    *bucket->end = new;
    bucket->end = &new->next;
    pthread_mutex_unlock(&lock);
}

void request_started(word request, const struct hvprof_message *message, void *needed)
{
    enter(&(struct pending){.request = request, .message = *message, .needed = needed});
}

void request_makes_communicator(word request, word made, uint64_t identity)
{
    enter(&(struct pending){.request = request, .made = made, .identity = identity});
}

static struct pending *take(word request)
{
    pthread_mutex_lock(&lock);
    struct bucket *bucket = bucket_of(request);
    struct pending **place = NULL;
    /* Of several, rather one that this thread started. */
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

/* The requests before a call that may complete some: in `few` when they fit. NULL when no call of ours is waiting. */
static word *copy(size_t count, word requests, word *few)
{
    if (atomic_load_explicit(&waiting, memory_order_acquire) == 0 || requests == 0 || count > INT32_MAX)
        return NULL;
    word *before = count <= FEW ? few : malloc(count * sizeof *before);
    for (size_t i = 0; before != NULL && i < count; i++)
        before[i] = request_at(requests, i);
    return before;
}

/* A request that completed has become MPI_REQUEST_NULL, whichever call saw it and whatever that returned. */
static void compare(size_t count, word requests, word *before, word *few, bool completed)
{
    if (before == NULL)
        return;
    uint64_t now = hvprof_now();
    for (size_t i = 0; i < count; i++) {
        struct pending *ended = request_at(requests, i) != before[i] ? take(before[i]) : NULL;
        if (ended != NULL && ended->made != 0) {
            communicator_enter(ended->identity, handle_at(ended->made));
        } else if (ended != NULL && completed) {
            ended->message.duration_ns = now - ended->message.start_ns;
            hvprof_append(&ended->message);
        }
        if (ended != NULL)
            free(ended->needed);
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
