#include "recorder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "counters.h"
#include "format.h"

/* Sequence numbers that a thread takes at once: threads that all count up one number wait for each other. */
enum { BLOCK = 16 };

const struct mapped_file_kind hvprof_file_kind = {.prefix = "rank", .extension = "hvp", .speaker = "hvprof"};

static struct {
    struct hvprof_file *file;
    uint64_t capacity;
    uint32_t communicators; /* entries used */
} ring;

static _Atomic bool recording;

/* What a thread records with. Handed on when it ends, so that numbers of threads, counters and sequence numbers stay few. */
struct writer {
    uint64_t next, end; /* sequence numbers taken and not yet used */
    struct counters counters;
    struct writer *free; /* the next one whose thread has ended */
};

static _Thread_local struct writer *own;
static struct writer *free_writers;
static pthread_mutex_t writers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t end_of_thread;

static void hand_on(void *writer)
{
    own = NULL;
    pthread_mutex_lock(&writers_lock);
    ((struct writer *)writer)->free = free_writers;
    free_writers = writer;
    pthread_mutex_unlock(&writers_lock);
}

/* NULL without memory. */
static struct writer *new_writer(void)
{
    static uint16_t threads;
    pthread_mutex_lock(&writers_lock);
    struct writer *writer = free_writers;
    if (writer != NULL)
        free_writers = writer->free;
    /* More threads than numbers, at one time, is more than any system starts. */
    else if (threads < UINT16_MAX && (writer = calloc(1, sizeof *writer)) != NULL)
        writer->counters.thread = threads++;
    pthread_mutex_unlock(&writers_lock);
    if (writer != NULL)
        pthread_setspecific(end_of_thread, writer);
    return own = writer;
}

static void describe(void *file, const void *described)
{
    const struct hvprof_identity *identity = described;
    struct hvprof_header *header = &((struct hvprof_file *)file)->header;
    memcpy(header->magic, HVPROF_MAGIC, sizeof header->magic);
    header->version = HVPROF_VERSION;
    header->header_bytes = sizeof(struct hvprof_file);
    header->record_bytes = sizeof(struct hvprof_record);
    header->rank = identity->rank;
    header->capacity = ring.capacity;
    header->world_size = identity->world_size;
    header->pid = (uint32_t)getpid();
    header->realtime_ns = clock_ns(CLOCK_REALTIME);
    header->monotonic_ns = hvprof_now();
    bool measured = identity->clock_error_ns != HVPROF_UNKNOWN_ERROR;
    header->clock_offset_ns = measured ? identity->clock_offset_ns : (int64_t)(header->realtime_ns - header->monotonic_ns);
    header->clock_error_ns = identity->clock_error_ns;
    header->job = identity->job;
    header->flags = identity->flags;
    gethostname(header->host, sizeof header->host - 1);
    snprintf(header->flavour, sizeof header->flavour, "%s", identity->flavour);
    snprintf(header->library, sizeof header->library, "%s", identity->library);
    for (unsigned i = 0; i < identity->operation_count && i < HVPROF_OPERATIONS; i++)
        if (identity->operations[i] != NULL)
            snprintf(header->operations[i], sizeof header->operations[i], "%s", identity->operations[i]);
    header->check = check_words((const uint64_t *)header, offsetof(struct hvprof_header, reserved_records) / sizeof(uint64_t));
}

/* The mapping is not handed on to forked children; this keeps them from touching what they no longer have. */
static void stop_in_child(void)
{
    atomic_store_explicit(&recording, false, memory_order_relaxed);
}

bool hvprof_open(const struct hvprof_identity *identity)
{
    ring.capacity = mapped_file_ring_bytes(&hvprof_file_kind) / sizeof(struct hvprof_record);
    uint64_t size = sizeof(struct hvprof_file) + ring.capacity * sizeof(struct hvprof_record);
    if (pthread_key_create(&end_of_thread, hand_on) != 0) {
        hvprof_say("no key for the threads' own data is left: the job goes on without a profile");
        return false;
    }
    ring.file = mapped_file_make(&hvprof_file_kind, identity->rank, size, describe, identity);
    if (ring.file == NULL)
        return false;
    counters_open(ring.file->counters);
    pthread_atfork(NULL, NULL, stop_in_child);
    atomic_store_explicit(&recording, true, memory_order_release);
    return true;
}

/* Behind a full table: one entry for each size, so that at least the size stays right. */
enum { SHARED_ENTRIES = 64 };

static uint32_t shared_entry(uint32_t size)
{
    uint32_t index = HVPROF_COMMUNICATORS - SHARED_ENTRIES;
    while (index + 1 < ring.communicators && ring.file->communicators[index].size != size)
        index++;
    return index;
}

uint32_t hvprof_add_communicator(uint64_t identity, uint32_t size, uint32_t rank, uint32_t remote_size, uint32_t flags)
{
    if (!atomic_load_explicit(&recording, memory_order_acquire))
        return 0;
    if (ring.communicators >= HVPROF_COMMUNICATORS - SHARED_ENTRIES) {
        if (ring.communicators == HVPROF_COMMUNICATORS - SHARED_ENTRIES)
            hvprof_say("more than %u communicators: the later ones are not told apart", ring.communicators);
        else if (ring.file->communicators[shared_entry(size)].size == size || ring.communicators == HVPROF_COMMUNICATORS)
            return shared_entry(size);
        flags |= HVPROF_OWN | HVPROF_SHARED;
    }
    struct hvprof_communicator *entry = &ring.file->communicators[ring.communicators];
    *entry = (struct hvprof_communicator){
        .identity = identity, .size = size, .rank = rank, .flags = flags, .remote_size = remote_size};
    entry->check = check_words((const uint64_t *)entry, offsetof(struct hvprof_communicator, check) / sizeof(uint64_t));
    return ring.communicators++;
}

static void append(struct writer *writer, const struct hvprof_message *message)
{
    if (writer->next == writer->end) {
        writer->next = 1 + atomic_fetch_add_explicit(&ring.file->header.reserved_records, BLOCK, memory_order_relaxed);
        writer->end = writer->next + BLOCK;
    }
    uint64_t sequence = writer->next++;
    struct hvprof_record *slot = &ring.file->records[(sequence - 1) % ring.capacity];
    /* The record as words, put together in registers: to assemble it in memory and copy it costs a third more. */
    const uint64_t words[] = {
        sequence,
        message->start_ns,
        message->duration_ns,
        message->bytes,
        (message->buffer & (((uint64_t)1 << 48) - 1)) | (uint64_t)writer->counters.thread << 48,
        message->communicator | (uint64_t)message->ordinal << 32,
        (uint32_t)message->root | (uint64_t)message->operation << 32 | (uint64_t)message->flags << 48,
    };
    enum { WORDS = sizeof words / sizeof *words };
    atomic_store_explicit(&slot->sequence, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
#pragma GCC unroll 8
    for (int i = 1; i < WORDS; i++)
        memcpy((char *)slot + i * sizeof *words, &words[i], sizeof *words);
    slot->check = check_words(words, WORDS);
    atomic_store_explicit(&slot->sequence, sequence, memory_order_release);
}

void hvprof_append(const struct hvprof_message *message)
{
    if (!atomic_load_explicit(&recording, memory_order_acquire))
        return;
    struct writer *writer = own != NULL ? own : new_writer();
    if (writer == NULL)
        return;
    bool in_communicator = message->communicator != HVPROF_NO_COMMUNICATOR;
    uint32_t ranks = in_communicator ? ring.file->communicators[message->communicator].size : 0;
    if (!message->only_counted)
        append(writer, message);
    counters_add(&writer->counters, message->operation, message->flags, ranks, message->bytes, message->duration_ns);
}
