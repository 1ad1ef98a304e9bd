/* Prints, again and again, how long a cache line takes from one core to another and back.
 *
 * Usage: core_distance SECONDS, between samples; it ends when its input does. Each line has the
 * seconds since 1970, both cores, and the nanoseconds of the fastest of ROUNDS rounds. A VM's cores
 * may be near each other at one moment (one cache) and far at another: the host moves them.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 5
#define TRIPS 200

static _Alignas(128) atomic_int line;

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *answer(void *unused) {
    for (;;) {
        int seen = atomic_load_explicit(&line, memory_order_acquire);
        if (seen < 0) return unused;
        if (seen & 1) atomic_store_explicit(&line, seen + 1, memory_order_release);
    }
}

static double fastest_round(void) {
    double fastest = 1;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now(CLOCK_MONOTONIC);
        for (int trip = 0; trip < TRIPS; trip++) {
            int sent = atomic_load(&line) + 1;
            atomic_store(&line, sent);
            while (atomic_load(&line) == sent) continue;
        }
        double seconds = (now(CLOCK_MONOTONIC) - start) / TRIPS;
        if (seconds < fastest) fastest = seconds;
    }
    return fastest;
}

/* Returns the seconds of a round trip, or a negative number if a core cannot be used. */
static double round_trip(int first, int second) {
    cpu_set_t one, other;
    pthread_attr_t attributes;
    pthread_t thread;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CPU_ZERO(&other);
    CPU_SET(second, &other);
    if (sched_setaffinity(0, sizeof one, &one)) return -1;
    atomic_store(&line, 0);
    pthread_attr_init(&attributes);
    /* At birth: a thread that inherits this core would wait for it while this one spins. */
    pthread_attr_setaffinity_np(&attributes, sizeof other, &other);
    int failed = pthread_create(&thread, &attributes, answer, NULL);
    pthread_attr_destroy(&attributes);
    if (failed) return -1;
    double seconds = fastest_round();
    atomic_store(&line, -1);
    pthread_join(thread, NULL);
    return seconds;
}

int main(int count, char **words) {
    cpu_set_t allowed;
    int cores[CPU_SETSIZE], number = 0;
    double seconds = count == 2 ? atof(words[1]) : 0;
    if (seconds <= 0 || sched_getaffinity(0, sizeof allowed, &allowed)) {
        fprintf(stderr, "usage: core_distance SECONDS\n");
        return 2;
    }
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed)) cores[number++] = core;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (int sample = 0; number > 1; sample++) {
        int second = cores[1 + sample % (number - 1)];
        double taken = round_trip(cores[0], second);
        if (taken < 0) {
            fprintf(stderr, "core_distance: core %d or %d cannot be used\n", cores[0], second);
            return 1;
        }
        printf("%.3f %d %d %.0f\n", now(CLOCK_REALTIME), cores[0], second, 1e9 * taken);
        fflush(stdout);
        if (poll(&input, 1, (int)(1000 * seconds))) break;
    }
    return 0;
}
