/*
 * profiler_calls THREADS: times MPI_Allreduce of 8 bytes; each thread has a communicator of one
 * rank. Prints the median over batches in nanoseconds. The difference with and without hvprof is
 * the profiler's overhead per call.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCHES = 1000, BATCH = 200 };

static double times[64 * BATCHES];
static MPI_Comm communicators[64];
static pthread_barrier_t together;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *work(void *argument)
{
    size_t thread = (size_t)argument;
    double in = 1, out = 0;
    pthread_barrier_wait(&together);
    for (int i = 0; i < BATCHES; i++) {
        double start = now();
        for (int call = 0; call < BATCH; call++)
            MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, communicators[thread]);
        times[thread * BATCHES + (size_t)i] = (now() - start) / BATCH;
    }
    return NULL;
}

static int ascending(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv)
{
    size_t threads = argc > 1 ? (size_t)atoi(argv[1]) : 1;
    int provided;
    if (threads < 1 || threads > 64)
        return 1;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    pthread_t workers[64];
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (size_t i = 0; i < threads; i++)
        MPI_Comm_dup(MPI_COMM_SELF, &communicators[i]);
    for (size_t i = 0; i < threads; i++)
        pthread_create(&workers[i], NULL, work, (void *)i);
    for (size_t i = 0; i < threads; i++)
        pthread_join(workers[i], NULL);
    qsort(times, threads * BATCHES, sizeof *times, ascending);
    printf("%.2f\n", times[threads * BATCHES / 2]);
    MPI_Finalize();
    return 0;
}
