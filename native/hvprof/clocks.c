/*
 * Aligns the ranks' clocks with rank 0's along a binomial tree, in O(log np) rounds. A rank takes
 * over the offset of its parent if both read one clock, and else measures it by timed round trips.
 */
#include "clocks.h"

#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "format.h"
#include "profiler.h"
#include "recorder.h"

enum { TAG = 31807, ROUNDS = 16, MAX_CHILDREN = 31 };
enum { DONE = 1, ASK = 2 }; /* messages to the parent */

#define TIMEOUT_NS ((uint64_t)10 * 1000000000u)
#define SPIN_NS 200000u /* then sleep: ranks that share a core must let each other answer */
#define PAUSE_NS 100000

static uint64_t add_bytes(uint64_t hash, const char *bytes, ssize_t count)
{
    for (ssize_t i = 0; i < count; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001B3u;
    return hash;
}

/*
 * A number that is equal on processes with the same CLOCK_MONOTONIC: one boot of one kernel, and
 * one time namespace. 0: unknown.
 */
static uint64_t clock_identity(void)
{
    char text[256];
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, text, sizeof text) : -1;
    if (file >= 0)
        close(file);
    if (length <= 0)
        return 0;
    uint64_t hash = add_bytes(0xCBF29CE484222325u, text, length);
    /* Kernels before 5.6 have no such link, and one clock for all processes. */
    return add_bytes(hash, text, readlink("/proc/self/ns/time", text, sizeof text));
}

/* What a parent tells its children about its own clock. */
enum { IDENTITY, OFFSET, ERROR, JOB, WORDS };

static void send(const uint64_t message[WORDS], int to)
{
    mpi.send(message, WORDS * sizeof *message, mpi.type_byte, to, TAG, mpi.comm_world);
}

static void send_word(uint64_t first, int to)
{
    send((uint64_t[WORDS]){first}, to);
}

/*
 * A receive without an answer stays posted until MPI_Finalize: its message, if it arrives late, must
 * not match a receive of the program with MPI_ANY_TAG.
 */
static struct {
    word request;
    uint64_t message[WORDS];
} receives[1 + MAX_CHILDREN]; /* each peer leaves at most one unanswered */
static int unanswered;

static int cancel_unanswered(word communicator, int key, void *value, void *extra)
{
    (void)communicator, (void)key, (void)value, (void)extra;
    struct any_status status;
    while (unanswered > 0) {
        unanswered--;
        mpi.cancel(&receives[unanswered].request);
        mpi.wait(&receives[unanswered].request, &status);
    }
    return 0;
}

/*
 * Returns false after `deadline`: a rank that was started without hvprof does not answer, and must
 * not block the job.
 */
static bool receive(uint64_t message[WORDS], int from, uint64_t deadline)
{
    word *request = &receives[unanswered].request;
    uint64_t *received = receives[unanswered].message;
    struct any_status status;
    int done = 0;
    mpi.irecv(received, WORDS * sizeof *received, mpi.type_byte, from, TAG, mpi.comm_world, request);
    const uint64_t begin = hvprof_now();
    for (uint64_t now = begin;; now = hvprof_now()) {
        mpi.test(request, &done, &status);
        if (done) {
            memcpy(message, received, WORDS * sizeof *received);
            return true;
        }
        if (now >= deadline)
            break;
        if (now - begin > SPIN_NS)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    if (unanswered++ == 0)
        mpi_call_at_end(cancel_unanswered);
    return false;
}

static void give_up_on(int peer)
{
    log_line("rank %d did not answer within 10 s (started without hvprof?): clocks are not aligned", peer);
}

static uint64_t new_job(void)
{
    uint64_t job = 0;
    if (getrandom(&job, sizeof job, GRND_NONBLOCK) != sizeof job || job == 0)
        job = (clock_ns(CLOCK_REALTIME) ^ (uint64_t)getpid() << 48) | 1;
    return job;
}

static struct clock_offset compare_with(int parent)
{
    const struct clock_offset unknown = {.error_ns = HVPROF_UNKNOWN_CLOCK_ERROR};
    uint64_t told[WORDS], answer[WORDS];
    if (!receive(told, parent, hvprof_now() + TIMEOUT_NS)) {
        give_up_on(parent);
        return unknown;
    }
    if (told[ERROR] == HVPROF_UNKNOWN_CLOCK_ERROR)
        return unknown;
    uint64_t best = UINT64_MAX;
    int64_t ahead = 0;
    if (told[IDENTITY] != 0 && told[IDENTITY] == clock_identity()) {
        best = 0;
    } else {
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t begin = hvprof_now();
            send_word(ASK, parent);
            if (!receive(answer, parent, begin + TIMEOUT_NS)) {
                give_up_on(parent);
                return unknown;
            }
            uint64_t trip = hvprof_now() - begin;
            if (trip < best) {
                best = trip;
                ahead = (int64_t)(answer[0] - (begin + trip / 2));
            }
        }
    }
    send_word(DONE, parent);
    return (struct clock_offset){
        .offset_ns = (int64_t)told[OFFSET] + ahead,
        .error_ns = told[ERROR] + (best + 1) / 2,
        .job = told[JOB],
    };
}

/* Answers a child's questions until it is done. Returns false after `deadline`. */
static bool answer_questions(int child, uint64_t deadline)
{
    uint64_t asked[WORDS];
    while (receive(asked, child, deadline)) {
        if (asked[0] == DONE)
            return true;
        send_word(hvprof_now(), child);
    }
    return false;
}

struct clock_offset clocks_measure(int rank, int size)
{
    struct clock_offset own = {.offset_ns = (int64_t)(clock_ns(CLOCK_REALTIME) - hvprof_now())};
    if (rank == 0)
        own.job = new_job();
    else
        own = compare_with(rank & (rank - 1));
    int children = 0;
    while (children < MAX_CHILDREN && rank + (1L << children) < size && !(rank >> children & 1))
        children++;
    /* The child with most descendants first. */
    for (int child = children; child-- > 0;)
        send((uint64_t[WORDS]){clock_identity(), (uint64_t)own.offset_ns, own.error_ns, own.job}, rank + (1 << child));
    if (own.error_ns == HVPROF_UNKNOWN_CLOCK_ERROR)
        return own;
    const uint64_t deadline = hvprof_now() + TIMEOUT_NS;
    for (int child = children; child-- > 0;)
        if (!answer_questions(rank + (1 << child), deadline))
            give_up_on(rank + (1 << child));
    return own;
}
