/* A ring of chunks in an anonymous file, with a counter for each rank. */
#include "node_memory.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/file_space.h"
#include "mpi_abi/mpi_abi.h"

enum { LINE = 64, PAGE = 4096, POLLS_BEFORE_PROGRESS = 200 };

/*
 * Counts of chunks since the start, each in a separate cache line. The chunks follow on the next
 * page.
 */
struct shared {
    uint64_t mark;
    _Alignas(LINE) _Atomic uint64_t put;
    struct {
        _Alignas(LINE) _Atomic uint64_t taken;
    } of[];
};

static size_t head_bytes(int size)
{
    size_t bytes = sizeof(struct shared) + (size_t)size * LINE;
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static size_t all_bytes(const struct node_memory *m)
{
    return head_bytes(m->size) + NODE_MEMORY_BYTES;
}

static bool map(struct node_memory *m, int file)
{
    void *memory = mmap(NULL, all_bytes(m), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    m->shared = memory != MAP_FAILED ? memory : NULL;
    return m->shared != NULL;
}

bool node_memory_create(struct node_memory *m, struct node_memory_place *place)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    place->pid = (int)getpid();
    place->mark = ((uint64_t)now.tv_sec << 30 | (uint64_t)now.tv_nsec) ^ (uint64_t)place->pid << 40;
    place->file = memfd_create("hvbcast", MFD_CLOEXEC);
    /* Reserved now: running out of memory later would kill the rank with SIGBUS. */
    if (place->file < 0 || file_space_reserve(place->file, 0, all_bytes(m)) != 0 || !map(m, place->file))
        return false;
    m->shared->mark = place->mark;
    return true;
}

bool node_memory_attach(struct node_memory *m, const struct node_memory_place *place)
{
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place->pid, place->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return false;
    /* In another container the process id may belong to a different process. */
    bool attached = fstat(file, &found) == 0 && S_ISREG(found.st_mode) &&
        (uint64_t)found.st_size == all_bytes(m) && map(m, file);
    close(file);
    if (attached && m->shared->mark != place->mark) {
        node_memory_close(m);
        attached = false;
    }
    return attached;
}

void node_memory_close(struct node_memory *m)
{
    if (m->shared != NULL)
        munmap(m->shared, all_bytes(m));
    m->shared = NULL;
}

/* A program may rely on progress of its other messages during a broadcast. */
static void make_progress(const struct node_memory *m)
{
    struct any_status status;
    int found;
    mpi.iprobe(m->progress_rank, 0, m->progress, &found, &status);
    sched_yield();
}

static void await(const struct node_memory *m, const _Atomic uint64_t *count, uint64_t wanted)
{
    for (unsigned polls = 1; atomic_load_explicit(count, memory_order_acquire) < wanted; polls++)
        if (polls % POLLS_BEFORE_PROGRESS == 0)
            make_progress(m);
}

/* Waits until all others have taken the chunks before `wanted`. */
static void await_others(const struct node_memory *m, uint64_t wanted)
{
    for (int i = 0; i < m->size; i++)
        if (i != m->rank)
            await(m, &m->shared->of[i].taken, wanted);
}

static char *slot(const struct node_memory *m)
{
    return (char *)m->shared + head_bytes(m->size) + m->passed % m->slots * m->chunk;
}

static void pass(struct node_memory *m)
{
    m->passed++;
    atomic_store_explicit(&m->shared->of[m->rank].taken, m->passed, memory_order_release);
}

void node_memory_divide(struct node_memory *m, uint64_t chunk, int depth, bool is_source)
{
    uint64_t slots = NODE_MEMORY_BYTES / chunk;
    if (slots > (uint64_t)depth)
        slots = (uint64_t)depth;
    /* Another rank may still be reading with the old slot size. */
    if (is_source && (chunk != m->chunk || slots != m->slots))
        await_others(m, m->passed);
    m->chunk = chunk;
    m->slots = slots;
}

void node_memory_put(struct node_memory *m, const char *from, uint64_t bytes)
{
    if (m->passed >= m->slots)
        await_others(m, m->passed - m->slots + 1);
    memcpy(slot(m), from, bytes);
    pass(m);
    atomic_store_explicit(&m->shared->put, m->passed, memory_order_release);
}

void node_memory_take(struct node_memory *m, char *to, uint64_t bytes)
{
    await(m, &m->shared->put, m->passed + 1);
    memcpy(to, slot(m), bytes);
    pass(m);
}
