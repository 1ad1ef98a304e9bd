/* Appends records to the ring and totals to the counters of the mapped file. */
#include "recorder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "counters.h"
#include "format.h"

/*
 * The number of sequence numbers that a thread reserves at once. Updating the shared counter for
 * each record would make threads wait for each other.
 */
enum { BLOCK = 16 };

const char log_name[] = "hvprof";
static const struct mapped_file_kind file_kind = {.prefix = "rank", .extension = "hvp"};

static struct {
    struct hvprof_file *file;
    uint64_t capacity; /* 0: calls are only counted */
    uint32_t communicators; /* entries used */
    uint32_t communicators_reserved; /* entries with disk space */
} ring;

_Atomic bool hvprof_recording;

/*
 * A thread's recording state. When the thread ends, another one reuses it. That limits thread
 * numbers, counters and unused sequence numbers.
 */
struct writer {
    uint64_t next, end; /* range of reserved, unused sequence numbers */
    struct counters counters;
    struct writer *free; /* the next writer without a thread */
};

static _Thread_local struct writer *own;
static struct writer *free_writers;
static pthread_mutex_t writers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t end_of_thread;

static void release(void *writer)
{
    own = NULL;
    pthread_mutex_lock(&writers_lock);
    ((struct writer *)writer)->free = free_writers;
    free_writers = writer;
    pthread_mutex_unlock(&writers_lock);
}

/* Returns NULL if memory runs out, or with 65535 threads at once. */
static struct writer *find_writer(void)
{
    static uint16_t threads;
    pthread_mutex_lock(&writers_lock);
    struct writer *writer = free_writers;
    if (writer != NULL)
        free_writers = writer->free;
    else if (threads < UINT16_MAX && (writer = calloc(1, sizeof *writer)) != NULL)
        writer->counters.thread = threads++;
    pthread_mutex_unlock(&writers_lock);
    if (writer != NULL && pthread_setspecific(end_of_thread, writer) != 0) {
        release(writer);
        writer = NULL;
    }
    return own = writer;
}

static void write_header(void *file, const void *described)
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
    bool measured = identity->clock_error_ns != HVPROF_UNKNOWN_CLOCK_ERROR;
    int64_t own_offset_ns = (int64_t)(header->realtime_ns - header->monotonic_ns);
    header->clock_offset_ns = measured ? identity->clock_offset_ns : own_offset_ns;
    header->clock_error_ns = identity->clock_error_ns;
    header->job = identity->job;
    header->flags = identity->flags;
    gethostname(header->host, sizeof header->host - 1);
    snprintf(header->flavour, sizeof header->flavour, "%s", identity->flavour);
    snprintf(header->library, sizeof header->library, "%s", identity->library);
    for (unsigned i = 0; i < identity->operation_count && i < HVPROF_OPERATIONS; i++)
        if (identity->operations[i] != NULL)
            snprintf(header->operations[i], sizeof header->operations[i], "%s", identity->operations[i]);
    const size_t checked_words = offsetof(struct hvprof_header, reserved_records) / sizeof(uint64_t);
    header->check = check_words((const uint64_t *)header, checked_words);
}

/* A forked child does not have the mapping, so it must not write there. */
static void stop_in_child(void)
{
    atomic_store_explicit(&hvprof_recording, false, memory_order_relaxed);
}

/* Whether HVPROF_RECORD asks for counters alone. */
static bool only_counts(void)
{
    const char *text = getenv("HVPROF_RECORD");
    if (text == NULL || *text == '\0' || strcmp(text, "calls") == 0)
        return false;
    if (strcmp(text, "counters") == 0)
        return true;
    log_line("HVPROF_RECORD=%s is neither calls nor counters: using the default, calls", text);
    return false;
}

/*
 * When the table is full, later communicators of the same size share an entry, so that their size
 * stays correct.
 */
enum { SHARED_ENTRIES = 64, OWN_ENTRIES = HVPROF_COMMUNICATORS - SHARED_ENTRIES };

/* A file without records reserves space only for what is used: its tables stay mostly empty. */
enum {
    PAGE = 4096,
    FIRST_COMMUNICATORS = PAGE / sizeof(struct hvprof_communicator),
    SHARED_COUNTERS = offsetof(struct hvprof_file, counters[HVPROF_COUNTERS - HVPROF_OPERATIONS]),
    SHARED_COMMUNICATORS = offsetof(struct hvprof_file, communicators[OWN_ENTRIES]),
};
static const struct file_part counters_parts[] = {
    {SHARED_COUNTERS, sizeof(struct hvprof_file) - SHARED_COUNTERS},
    {0, offsetof(struct hvprof_file, communicators[FIRST_COMMUNICATORS])},
    {SHARED_COMMUNICATORS, offsetof(struct hvprof_file, counters) - SHARED_COMMUNICATORS},
};

static struct hvprof_file *create_file(const struct hvprof_identity *identity)
{
    if (only_counts()) {
        ring.communicators_reserved = FIRST_COMMUNICATORS;
        return mapped_file_create(&file_kind, identity->rank, sizeof(struct hvprof_file), counters_parts,
                                  sizeof counters_parts / sizeof *counters_parts, write_header, identity);
    }
    ring.capacity = mapped_file_ring_bytes() / sizeof(struct hvprof_record);
    ring.communicators_reserved = OWN_ENTRIES;
    uint64_t size = sizeof(struct hvprof_file) + ring.capacity * sizeof(struct hvprof_record);
    const struct file_part whole = {.bytes = size};
    return mapped_file_create(&file_kind, identity->rank, size, &whole, 1, write_header, identity);
}

void hvprof_open(const struct hvprof_identity *identity)
{
    if (pthread_key_create(&end_of_thread, release) != 0 || pthread_atfork(NULL, NULL, stop_in_child) != 0) {
        log_line("out of memory or thread-specific keys: the job continues without a profile");
        return;
    }
    ring.file = create_file(identity);
    if (ring.file == NULL)
        return;
    counters_open(ring.file, ring.capacity != 0 ? HVPROF_COUNTERS : 0);
    atomic_store_explicit(&hvprof_recording, true, memory_order_release);
}

void hvprof_stop_out_of_memory(void)
{
    if (!atomic_exchange(&hvprof_recording, false))
        return;
    atomic_store_explicit(&ring.file->header.stopped_ns, hvprof_now(), memory_order_relaxed);
    log_line("out of memory: recording stops here, and the job continues");
}

/* Whether disk space is reserved for the next entry. */
static bool has_space(void)
{
    if (ring.communicators < ring.communicators_reserved)
        return true;
    uint32_t entries = PAGE / sizeof(struct hvprof_communicator);
    if (entries > OWN_ENTRIES - ring.communicators)
        entries = OWN_ENTRIES - ring.communicators;
    struct file_part part = {offsetof(struct hvprof_file, communicators) +
                                 ring.communicators * sizeof(struct hvprof_communicator),
                             entries * sizeof(struct hvprof_communicator)};
    if (!mapped_file_reserve(part))
        return false;
    ring.communicators_reserved += entries;
    return true;
}

static uint32_t shared_entry(uint32_t size)
{
    uint32_t index = OWN_ENTRIES;
    while (index + 1 < ring.communicators && ring.file->communicators[index].size != size)
        index++;
    return index;
}

uint32_t hvprof_add_communicator(uint64_t identity, uint32_t size, uint32_t rank, uint32_t remote_size, uint32_t flags)
{
    if (!hvprof_is_recording())
        return 0;
    if (ring.communicators < OWN_ENTRIES && !has_space()) {
        log_line("no space for more than %u communicators: later ones are grouped by their size", ring.communicators);
        ring.communicators = OWN_ENTRIES;
    } else if (ring.communicators == OWN_ENTRIES) {
        log_line("too many communicators: later ones are grouped by their size");
    }
    if (ring.communicators >= OWN_ENTRIES) {
        bool is_first = ring.communicators == OWN_ENTRIES;
        if (!is_first && (ring.file->communicators[shared_entry(size)].size == size ||
                          ring.communicators == HVPROF_COMMUNICATORS))
            return shared_entry(size);
        flags |= HVPROF_OWN_IDENTITY | HVPROF_SHARED_ENTRY;
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
    /*
     * Assembled in registers: assembling the record in memory and copying it takes a third longer.
     */
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
    if (!hvprof_is_recording())
        return;
    struct writer *writer = own != NULL ? own : find_writer();
    if (writer == NULL) {
        hvprof_stop_out_of_memory();
        return;
    }
    if (message->operation == HVPROF_STEP) {
        if (ring.capacity != 0)
            append(writer, message);
        counters_add_step(&writer->counters, message->start_ns);
        return;
    }
    bool in_communicator = message->communicator != HVPROF_NO_COMMUNICATOR;
    uint32_t ranks = in_communicator ? ring.file->communicators[message->communicator].size : 0;
    if (!message->only_counted && ring.capacity != 0)
        append(writer, message);
    counters_add(&writer->counters, message->operation, message->flags, ranks, message->bytes, message->duration_ns);
}
