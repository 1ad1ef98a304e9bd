#include "record.h"

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

#define MIB ((uint64_t)1 << 20)
#define DEFAULT_MIB 64

static struct nccl_header *header; /* NULL: no file */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int prefix = snprintf(line, sizeof line, "hvprof: NCCL: ");
    int length = prefix + vsnprintf(line + prefix, sizeof line - (size_t)prefix - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    /* One write, so that the lines of many ranks do not mix. */
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}

/* The same sum as in hvprof's files: docs/profile-format.md. */
static uint64_t check_words(const uint64_t *words, size_t count)
{
    const uint64_t odd = 0x9E3779B97F4A7C15u;
    uint64_t sum = odd;
    for (size_t i = 0; i < count; i++)
        sum += words[i] * (odd * (2 * i + 1));
    return sum;
}

static uint64_t capacity_asked(void)
{
    const char *text = getenv("HVPROF_MIB");
    long long mebibytes = DEFAULT_MIB;
    if (text != NULL && *text != '\0') {
        char *end;
        mebibytes = strtoll(text, &end, 10);
        if (*end != '\0' || mebibytes < 1 || mebibytes > 1 << 20) {
            say("HVPROF_MIB=%s is not a number of MiB from 1 to 1048576: taking %d", text, DEFAULT_MIB);
            mebibytes = DEFAULT_MIB;
        }
    }
    return (uint64_t)mebibytes * MIB / sizeof(struct nccl_record);
}

static void write_header(struct nccl_header *into, uint32_t rank, uint32_t job_size, unsigned interface, uint64_t capacity)
{
    memcpy(into->magic, NCCL_FILE_MAGIC, sizeof into->magic);
    into->version = NCCL_FILE_VERSION;
    into->header_bytes = sizeof *into;
    into->record_bytes = sizeof(struct nccl_record);
    into->rank = rank;
    into->capacity = capacity;
    into->job_size = job_size;
    into->pid = (uint32_t)getpid();
    into->realtime_ns = nccl_now(CLOCK_REALTIME);
    into->monotonic_ns = nccl_now(CLOCK_MONOTONIC);
    gethostname(into->host, sizeof into->host - 1);
    into->interface = interface;
    into->check = check_words((const uint64_t *)into, offsetof(struct nccl_header, recorded) / sizeof(uint64_t));
}

/* Under its name only when it is whole; a later process of the same rank never shares or replaces the file of an earlier one. */
static bool publish(const char *temporary, const char *directory, uint32_t rank)
{
    char path[4096];
    for (int attempt = 0; attempt < 100; attempt++) {
        char suffix[48] = "";
        if (attempt > 0)
            snprintf(suffix, sizeof suffix, ".%d-%d", (int)getpid(), attempt);
        if ((size_t)snprintf(path, sizeof path, "%s/nccl-%05u%s.hvn", directory, rank, suffix) >= sizeof path) {
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

/* The mapping is not handed on to forked children; this keeps them from touching what they do not have. */
static void stop_in_child(void)
{
    header = NULL;
}

static struct nccl_header *map_file(int file, uint64_t size)
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

bool nccl_file_open(uint32_t rank, uint32_t job_size, unsigned interface)
{
    const char *directory = getenv("HVPROF_DIRECTORY");
    if (directory == NULL || *directory == '\0') {
        say("HVPROF_DIRECTORY is not set: the job goes on without a profile");
        return false;
    }
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s/.nccl-%05u.XXXXXX", directory, rank) >= sizeof temporary) {
        say("HVPROF_DIRECTORY is too long a path: the job goes on without a profile");
        return false;
    }
    int file = mkostemp(temporary, O_CLOEXEC);
    if (file < 0) {
        say("cannot write in %s (%s): the job goes on without a profile", directory, strerror(errno));
        return false;
    }
    uint64_t capacity = capacity_asked();
    uint64_t size = sizeof(struct nccl_header) + capacity * sizeof(struct nccl_record);
    struct nccl_header *mapped = map_file(file, size);
    bool ready = mapped != NULL;
    if (ready) {
        write_header(mapped, rank, job_size, interface, capacity);
        fchmod(file, 0644);
        /* Held, with the open file, for as long as this process lives: nobody cuts the file under it. */
        flock(file, LOCK_SH | LOCK_NB);
        ready = publish(temporary, directory, rank);
    }
    if (!ready) {
        say("cannot make a profile of %llu MiB in %s (%s): the job goes on without one", (unsigned long long)(size / MIB),
            directory, strerror(errno));
        if (mapped != NULL)
            munmap(mapped, size);
        close(file);
        unlink(temporary);
        return false;
    }
    unlink(temporary);
    header = mapped;
    pthread_atfork(NULL, NULL, stop_in_child);
    return true;
}

void nccl_file_append(const struct nccl_record *record)
{
    if (header == NULL)
        return;
    uint64_t sequence = 1 + atomic_fetch_add_explicit(&header->recorded, 1, memory_order_relaxed);
    struct nccl_record *slot = (struct nccl_record *)(header + 1) + (sequence - 1) % header->capacity;
    enum { WORDS = offsetof(struct nccl_record, check) / sizeof(uint64_t) };
    uint64_t words[WORDS];
    memcpy(words, record, sizeof words);
    words[0] = sequence;
    atomic_store_explicit(&slot->sequence, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    memcpy((char *)slot + sizeof *words, words + 1, sizeof words - sizeof *words);
    slot->check = check_words(words, WORDS);
    atomic_store_explicit(&slot->sequence, sequence, memory_order_release);
}
