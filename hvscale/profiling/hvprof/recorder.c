#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format.h"

#define MIB ((uint64_t)1 << 20)
#define DEFAULT_MIB 64

static struct {
    struct hvprof_file *file;
    uint64_t capacity;
    uint32_t communicators; /* entries used */
} ring;

static _Atomic bool recording;

void hvprof_say(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(line, sizeof line, "hvprof: ");
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    /* One write, so that the lines of many ranks do not mix. */
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}

/* Each word times its own odd number: any single flipped bit changes the sum, and the products do not wait for each other. */
static inline uint64_t check_words(const uint64_t *words, size_t count)
{
    const uint64_t odd = 0x9E3779B97F4A7C15u;
    uint64_t sum = odd;
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
        sum += words[i] * (odd * (2 * i + 1));
    return sum;
}

static uint64_t capacity_asked(void)
{
    const char *text = getenv("HVPROF_MIB");
    uint64_t mebibytes = DEFAULT_MIB;
    if (text != NULL && *text != '\0') {
        char *end;
        errno = 0;
        long long value = strtoll(text, &end, 10);
        if (errno == 0 && *end == '\0' && value >= 1 && value <= 1 << 20)
            mebibytes = (uint64_t)value;
        else
            hvprof_say("HVPROF_MIB=%s is not a number of MiB from 1 to 1048576: taking %d", text, DEFAULT_MIB);
    }
    return mebibytes * MIB / sizeof(struct hvprof_record);
}

static void write_header(struct hvprof_header *header, const struct hvprof_identity *identity, uint64_t capacity)
{
    memcpy(header->magic, HVPROF_MAGIC, sizeof header->magic);
    header->version = HVPROF_VERSION;
    header->header_bytes = sizeof(struct hvprof_file);
    header->record_bytes = sizeof(struct hvprof_record);
    header->rank = identity->rank;
    header->capacity = capacity;
    header->world_size = identity->world_size;
    header->pid = (uint32_t)getpid();
    header->realtime_ns = hvprof_clock(CLOCK_REALTIME);
    header->monotonic_ns = hvprof_now();
    bool measured = identity->clock_error_ns != HVPROF_UNKNOWN_ERROR;
    header->clock_offset_ns = measured ? identity->clock_offset_ns : (int64_t)(header->realtime_ns - header->monotonic_ns);
    header->clock_error_ns = identity->clock_error_ns;
    gethostname(header->host, sizeof header->host - 1);
    snprintf(header->flavour, sizeof header->flavour, "%s", identity->flavour);
    snprintf(header->library, sizeof header->library, "%s", identity->library);
    for (unsigned i = 0; i < identity->operation_count && i < HVPROF_OPERATIONS; i++)
        if (identity->operations[i] != NULL)
            snprintf(header->operations[i], sizeof header->operations[i], "%s", identity->operations[i]);
    header->check = check_words((const uint64_t *)header, offsetof(struct hvprof_header, recorded) / sizeof(uint64_t));
}

/* The first process of a rank gets rank-00003.hvp; whoever comes after it never shares or replaces that file. */
static bool publish(const char *temporary, const char *directory, uint32_t rank)
{
    char path[4096];
    for (int attempt = 0; attempt < 100; attempt++) {
        char suffix[48] = "";
        if (attempt > 0)
            snprintf(suffix, sizeof suffix, ".%d", (int)getpid());
        if (attempt > 1)
            snprintf(suffix, sizeof suffix, ".%d-%d", (int)getpid(), attempt);
        if ((size_t)snprintf(path, sizeof path, "%s/rank-%05u%s.hvp", directory, rank, suffix) >= sizeof path) {
            errno = ENAMETOOLONG;
            return false;
        }
        if (link(temporary, path) == 0)
            return true;
        if (errno != EEXIST)
            return false;
    }
    return false;
}

/* madvise keeps the mapping out of forked children; this keeps them from touching what they no longer have. */
static void stop_in_child(void)
{
    atomic_store_explicit(&recording, false, memory_order_relaxed);
}

static struct hvprof_file *map_file(int file, uint64_t size)
{
    /* Space is taken now: writing to a mapped page of a full disk later would kill the job with SIGBUS. */
    errno = posix_fallocate(file, 0, (off_t)size);
    if (errno != 0)
        return NULL;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, size, MADV_DONTFORK);
    return memory;
}

bool hvprof_open(const struct hvprof_identity *identity)
{
    const char *directory = getenv("HVPROF_DIRECTORY");
    if (directory == NULL || *directory == '\0') {
        hvprof_say("HVPROF_DIRECTORY is not set: the job goes on without a profile");
        return false;
    }
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s/.rank-%05u.XXXXXX", directory, identity->rank) >= sizeof temporary) {
        hvprof_say("HVPROF_DIRECTORY is too long a path: the job goes on without a profile");
        return false;
    }
    int file = mkostemp(temporary, O_CLOEXEC);
    if (file < 0) {
        hvprof_say("cannot write in %s (%s): the job goes on without a profile", directory, strerror(errno));
        return false;
    }
    uint64_t capacity = capacity_asked();
    uint64_t size = sizeof(struct hvprof_file) + capacity * sizeof(struct hvprof_record);
    struct hvprof_file *mapped = map_file(file, size);
    bool ready = mapped != NULL;
    if (ready) {
        write_header(&mapped->header, identity, capacity);
        fchmod(file, 0644);
        /* Held, with the open file, for as long as this process lives: nobody cuts the file under it. */
        flock(file, LOCK_SH | LOCK_NB);
        ready = publish(temporary, directory, identity->rank);
    }
    if (!ready) {
        hvprof_say("cannot make a profile of %llu MiB in %s (%s): the job goes on without one",
                   (unsigned long long)(size / MIB), directory, strerror(errno));
        if (mapped != NULL)
            munmap(mapped, size);
        close(file);
        unlink(temporary);
        return false;
    }
    unlink(temporary);
    ring.file = mapped;
    ring.capacity = capacity;
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

static uint64_t this_thread(void)
{
    static _Atomic uint32_t threads;
    static _Thread_local uint32_t thread; /* from 1 */
    if (thread == 0)
        thread = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    return (uint16_t)(thread - 1);
}

void hvprof_append(const struct hvprof_message *message)
{
    if (!atomic_load_explicit(&recording, memory_order_acquire))
        return;
    uint64_t sequence = 1 + atomic_fetch_add_explicit(&ring.file->header.recorded, 1, memory_order_relaxed);
    struct hvprof_record *slot = &ring.file->records[(sequence - 1) % ring.capacity];
    /* The record as words, put together in registers: to assemble it in memory and copy it costs a third more. */
    const uint64_t words[] = {
        sequence,
        message->start_ns,
        message->duration_ns,
        message->bytes,
        (message->buffer & (((uint64_t)1 << 48) - 1)) | this_thread() << 48,
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
