/* Writes the file of NCCL calls. */
#include "nccl_file.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/mapped_file.h"

const char log_name[] = "hvprof: NCCL";
static const struct mapped_file_kind kind = {.prefix = "nccl", .extension = "hvn"};
static struct nccl_header *header; /* NULL: no file */

struct identity {
    uint32_t rank, job_size;
    unsigned interface;
    uint64_t capacity;
};

static void write_header(void *file, const void *described)
{
    const struct identity *identity = described;
    struct nccl_header *into = file;
    memcpy(into->magic, NCCL_FILE_MAGIC, sizeof into->magic);
    into->version = NCCL_FILE_VERSION;
    into->header_bytes = sizeof *into;
    into->record_bytes = sizeof(struct nccl_record);
    into->rank = identity->rank;
    into->capacity = identity->capacity;
    into->job_size = identity->job_size;
    into->pid = (uint32_t)getpid();
    into->realtime_ns = clock_ns(CLOCK_REALTIME);
    into->monotonic_ns = clock_ns(CLOCK_MONOTONIC);
    gethostname(into->host, sizeof into->host - 1);
    into->interface = identity->interface;
    into->check = check_words((const uint64_t *)into, offsetof(struct nccl_header, recorded) / sizeof(uint64_t));
}

/* A forked child does not have the mapping, so it must not write there. */
static void stop_in_child(void)
{
    header = NULL;
}

bool nccl_file_open(uint32_t rank, uint32_t job_size, unsigned interface)
{
    uint64_t capacity = mapped_file_ring_bytes() / sizeof(struct nccl_record);
    uint64_t size = sizeof(struct nccl_header) + capacity * sizeof(struct nccl_record);
    struct identity identity = {.rank = rank, .job_size = job_size, .interface = interface, .capacity = capacity};
    if (pthread_atfork(NULL, NULL, stop_in_child) != 0) {
        log_line("out of memory: the job continues without a profile of NCCL");
        return false;
    }
    const struct file_part whole[] = {{.bytes = size}};
    header = mapped_file_create(&kind, rank, size, whole, 1, write_header, &identity);
    return header != NULL;
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
