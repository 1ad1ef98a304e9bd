/*
 * profiler_cost THREADS: times a record without MPI. Prints two medians over interleaved batches in
 * nanoseconds: two clock reads alone, and two clock reads with a record. It is compiled together
 * with hvprof's recorder.c.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "recorder.h"

enum { BATCHES = 2000, BATCH = 200 };

static double alone[64 * BATCHES], recorded[64 * BATCHES];
static pthread_barrier_t together;

static double batch(bool record)
{
    uint64_t start = hvprof_now();
    for (int i = 0; i < BATCH; i++) {
        struct hvprof_message message = {.operation = 1, .bytes = 4096, .start_ns = hvprof_now()};
        message.duration_ns = hvprof_now() - message.start_ns;
        /* Without this the compiler could drop the unread message. */
        __asm__ volatile("" : : "r"(&message) : "memory");
        if (record)
            hvprof_append(&message);
    }
    return (double)(hvprof_now() - start) / BATCH;
}

static void *work(void *argument)
{
    size_t first = (size_t)argument * BATCHES;
    pthread_barrier_wait(&together);
    for (int i = 0; i < BATCHES; i++) {
        alone[first + i] = batch(false);
        recorded[first + i] = batch(true);
    }
    return NULL;
}

static int ascending(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    size_t threads = argc > 1 ? (size_t)atoi(argv[1]) : 1;
    const char *operations[] = {NULL, "allreduce"};
    struct hvprof_identity identity = {
        .world_size = 1,
        .flavour = "none",
        .library = "none",
        .operations = operations,
        .operation_count = 2,
    };
    if (threads < 1 || threads > 64)
        return 1;
    hvprof_open(&identity);
    if (!hvprof_is_recording())
        return 1;
    pthread_t workers[64];
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (size_t i = 0; i < threads; i++)
        pthread_create(&workers[i], NULL, work, (void *)i);
    for (size_t i = 0; i < threads; i++)
        pthread_join(workers[i], NULL);
    printf("%.2f %.2f\n", median(alone, threads * BATCHES), median(recorded, threads * BATCHES));
    return 0;
}
