/* Aligns the ranks' clocks by timed round trips to rank 0. */
#include "clocks.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/log.h"
#include "format.h"
#include "profiler.h"
#include "recorder.h"

enum { TAG = 31807, ROUNDS = 16 };
enum { DONE = 1, ASK = 2 }; /* messages to rank 0 */

#define TIMEOUT_NS ((uint64_t)10 * 1000000000u)

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

enum { WORDS = 3 };

static void send(uint64_t first, uint64_t second, uint64_t third, int to)
{
    uint64_t message[WORDS] = {first, second, third};
    mpi.send(message, sizeof message, mpi.type_byte, to, TAG, mpi.comm_world);
}

/*
 * Returns false after a timeout: a rank that was started without hvprof does not answer, and must
 * not block the job.
 */
static bool receive(uint64_t message[WORDS], int from)
{
    word request = 0;
    struct any_status status;
    int done = 0;
    mpi.irecv(message, WORDS * sizeof *message, mpi.type_byte, from, TAG, mpi.comm_world, &request);
    for (uint64_t begin = hvprof_now(); !done && hvprof_now() - begin < TIMEOUT_NS;)
        mpi.test(&request, &done, &status);
    if (!done) {
        mpi.cancel(&request);
        mpi.wait(&request, &status);
    }
    return done;
}

static struct clock_offset give_up_on(int peer)
{
    log_line("rank %d did not answer within 10 s (started without hvprof?): clocks are not aligned", peer);
    return (struct clock_offset){.error_ns = HVPROF_UNKNOWN_CLOCK_ERROR};
}

static uint64_t new_job(void)
{
    uint64_t job = 0;
    if (getrandom(&job, sizeof job, GRND_NONBLOCK) != sizeof job || job == 0)
        job = (clock_ns(CLOCK_REALTIME) ^ (uint64_t)getpid() << 48) | 1;
    return job;
}

static struct clock_offset answer_all(int size)
{
    struct clock_offset own = {.offset_ns = (int64_t)(clock_ns(CLOCK_REALTIME) - hvprof_now()), .job = new_job()};
    for (int peer = 1; peer < size; peer++) {
        send(clock_identity(), (uint64_t)own.offset_ns, own.job, peer);
        for (;;) {
            uint64_t asked[WORDS];
            if (!receive(asked, peer)) {
                give_up_on(peer);
                return own;
            }
            if (asked[0] == DONE)
                break;
            send(hvprof_now(), 0, 0, peer);
        }
    }
    return own;
}

struct clock_offset clocks_measure(int rank, int size)
{
    if (rank == 0)
        return answer_all(size);
    uint64_t message[WORDS];
    if (!receive(message, 0))
        return give_up_on(0);
    uint64_t clock = message[0], job = message[2], best = UINT64_MAX;
    int64_t zero_since_1970 = (int64_t)message[1], ahead = 0;
    if (clock != 0 && clock == clock_identity()) {
        best = 0;
    } else {
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t begin = hvprof_now();
            send(ASK, 0, 0, 0);
            if (!receive(message, 0))
                return give_up_on(0);
            uint64_t trip = hvprof_now() - begin;
            if (trip < best) {
                best = trip;
                ahead = (int64_t)(message[0] - (begin + trip / 2));
            }
        }
    }
    send(DONE, 0, 0, 0);
    return (struct clock_offset){.offset_ns = zero_since_1970 + ahead, .error_ns = (best + 1) / 2, .job = job};
}
