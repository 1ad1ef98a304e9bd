/* Combines NCCL's events into one record per call. */
#include "calls_in_flight.h"

#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/mapped_file.h"
#include "nccl_file.h"

#define SLOTS 4096 /* calls in flight; CUDA queues about a thousand kernels */
#define IDLE_CALLS 64 /* an idle call ends when this many other calls have become idle after it */

/*
 * A handle is the number of a call and, in its lowest byte, a channel or CALL. So old handles are
 * recognised, and handles need no memory.
 */
#define CALL 255u
#define UNRECORDED 254u
_Static_assert(sizeof(void *) == sizeof(uint64_t), "a handle has 56 bits for a number");

struct slot {
    uint64_t number; /* of the call, from 1; 0 while free */
    const struct nccl_communicator *communicator;
    struct nccl_record record;
    uint64_t enqueue_begin_ns, enqueue_end_ns; /* the end is 0 until NCCL has enqueued the call */
    uint64_t seen_begin_ns, seen_end_ns;
    uint64_t device_begin_ns, device_end_ns;
    unsigned expected, begun, ended; /* channels */
    bool idle;
};

static struct slot slots[SLOTS];
static uint64_t calls;
static uint64_t idle[IDLE_CALLS]; /* calls without a running channel; the oldest at `oldest_idle` */
static unsigned oldest_idle;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/*
 * Finds the rank in the job; a communicator may contain only some of its ranks. SLURM_PROCID comes
 * last, because under mpirun it is the launcher's.
 */
static void find_job_rank(uint32_t *rank, uint32_t *size)
{
    static const char *const names[][2] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"HOROVOD_RANK", "HOROVOD_SIZE"},
        {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
        {"PMI_RANK", "PMI_SIZE"},
        {"RANK", "WORLD_SIZE"},
        {"SLURM_PROCID", "SLURM_NTASKS"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank_text = getenv(names[i][0]), *size_text = getenv(names[i][1]);
        if (rank_text != NULL && size_text != NULL) {
            *rank = (uint32_t)strtoul(rank_text, NULL, 10);
            *size = (uint32_t)strtoul(size_text, NULL, 10);
            return;
        }
    }
}

/* A forked child has no calls in flight, and no thread that could release the lock. */
static void forget_in_child(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    calls = 0;
}

bool nccl_open(unsigned interface, int ranks, int rank)
{
    static bool tried, opened;
    pthread_mutex_lock(&lock);
    if (!tried) {
        tried = true;
        uint32_t own = (uint32_t)rank, size = (uint32_t)ranks;
        find_job_rank(&own, &size);
        opened = nccl_file_open(own, size, interface);
        pthread_atfork(NULL, NULL, forget_in_child);
    }
    bool open = opened;
    pthread_mutex_unlock(&lock);
    return open;
}

static void *handle_of(uint64_t number, unsigned part)
{
    return (void *)(uintptr_t)(number << 8 | part);
}

/* The slot of a handle; NULL if its record has been written or the handle is invalid. */
static struct slot *slot_of(void *handle)
{
    uint64_t number = (uint64_t)(uintptr_t)handle >> 8;
    struct slot *slot = &slots[number % SLOTS];
    return number != 0 && slot->number == number ? slot : NULL;
}

static void finish(struct slot *slot)
{
    enum nccl_timing timing = NCCL_ENQUEUED;
    slot->record.start_ns = slot->enqueue_begin_ns;
    slot->record.duration_ns = slot->enqueue_end_ns != 0 ? slot->enqueue_end_ns - slot->enqueue_begin_ns : 0;
    if (slot->ended != 0) {
        bool on_device = slot->device_begin_ns != 0 && slot->device_end_ns > slot->device_begin_ns;
        slot->record.channels = (uint16_t)slot->begun;
        timing = on_device ? NCCL_ON_DEVICE : NCCL_SEEN_BY_HOST;
        slot->record.start_ns = slot->seen_begin_ns;
        slot->record.duration_ns =
            on_device ? slot->device_end_ns - slot->device_begin_ns : slot->seen_end_ns - slot->seen_begin_ns;
    }
    slot->record.timing = timing;
    nccl_file_append(&slot->record);
    slot->number = 0;
}

static bool is_idle(const struct slot *slot)
{
    return slot->enqueue_end_ns != 0 && slot->ended == slot->begun;
}

/*
 * NCCL does not always report the number of channels. Then a call ends when it has been idle for
 * long.
 */
static void become_idle(struct slot *slot)
{
    if (slot->idle)
        return;
    slot->idle = true;
    struct slot *oldest = slot_of(handle_of(idle[oldest_idle], CALL));
    idle[oldest_idle] = slot->number;
    oldest_idle = (oldest_idle + 1) % IDLE_CALLS;
    if (oldest == NULL)
        return;
    oldest->idle = false;
    if (is_idle(oldest))
        finish(oldest);
}

static void finish_if_over(struct slot *slot)
{
    if (is_idle(slot) && slot->ended >= slot->expected)
        finish(slot);
    else if (is_idle(slot) && slot->ended != 0)
        become_idle(slot);
}

static void set_name(char field[16], const char *name)
{
    if (name != NULL)
        memcpy(field, name, strnlen(name, 16));
}

void *nccl_unrecorded(void)
{
    return handle_of(0, UNRECORDED);
}

void *nccl_begin(const struct nccl_communicator *communicator, const struct nccl_call *call)
{
    pthread_mutex_lock(&lock);
    uint64_t number = ++calls;
    struct slot *slot = &slots[number % SLOTS];
    if (slot->number != 0)
        finish(slot);
    *slot = (struct slot){
        .number = number,
        .communicator = communicator,
        .record = {
            .count = call->count,
            .communicator = call->communicator,
            .communicator_size = communicator->size,
            .communicator_rank = call->rank,
            .root = call->root,
            .channels = call->channels,
        },
        .enqueue_begin_ns = clock_ns(CLOCK_MONOTONIC),
        .expected = !communicator->has_kernel_events ? 0 : call->channels_unknown ? UINT_MAX : call->channels,
    };
    set_name(slot->record.function, call->function);
    set_name(slot->record.datatype, call->datatype);
    set_name(slot->record.algorithm, call->algorithm);
    set_name(slot->record.protocol, call->protocol);
    pthread_mutex_unlock(&lock);
    return handle_of(number, CALL);
}

void *nccl_begin_channel(void *call, uint8_t channel, uint64_t device_ns)
{
    void *handle = nccl_unrecorded();
    pthread_mutex_lock(&lock);
    struct slot *slot = slot_of(call);
    if (slot != NULL && channel < UNRECORDED) {
        if (slot->begun++ == 0)
            slot->seen_begin_ns = clock_ns(CLOCK_MONOTONIC);
        if (device_ns != 0 && (slot->device_begin_ns == 0 || device_ns < slot->device_begin_ns))
            slot->device_begin_ns = device_ns;
        handle = handle_of(slot->number, channel);
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

void nccl_stamp_channel(void *channel, uint64_t device_ns)
{
    pthread_mutex_lock(&lock);
    struct slot *slot = slot_of(channel);
    if (slot != NULL && device_ns > slot->device_end_ns)
        slot->device_end_ns = device_ns;
    pthread_mutex_unlock(&lock);
}

void nccl_end(void *call_or_channel)
{
    pthread_mutex_lock(&lock);
    struct slot *slot = slot_of(call_or_channel);
    if (slot != NULL) {
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (((uintptr_t)call_or_channel & 0xFF) == CALL) {
            slot->enqueue_end_ns = now;
        } else {
            slot->ended++;
            slot->seen_end_ns = now;
        }
        finish_if_over(slot);
    }
    pthread_mutex_unlock(&lock);
}

void nccl_flush(const struct nccl_communicator *communicator)
{
    pthread_mutex_lock(&lock);
    for (uint64_t number = calls < SLOTS ? 1 : calls - SLOTS + 1; number <= calls; number++) {
        struct slot *slot = slot_of(handle_of(number, CALL));
        if (slot != NULL && (communicator == NULL || slot->communicator == communicator))
            finish(slot);
    }
    pthread_mutex_unlock(&lock);
}

/* For a job that ends without destroying its communicators. */
__attribute__((destructor)) static void flush_at_exit(void)
{
    nccl_flush(NULL);
}
