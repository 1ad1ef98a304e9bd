/*
 * threads N: four threads, each with its own communicator, make N all-reduces of 1 to 7 ints
 * concurrently.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 4 };

static MPI_Comm communicators[THREADS];
static int calls;
static pthread_barrier_t together;

static void *work(void *argument)
{
    int in[7] = {0}, out[7];
    pthread_barrier_wait(&together);
    for (int i = 0; i < calls; i++)
        MPI_Allreduce(in, out, 1 + i % 7, MPI_INT, MPI_SUM, *(MPI_Comm *)argument);
    pthread_barrier_wait(&together); /* no thread ends before all have begun to record */
    return NULL;
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided < MPI_THREAD_MULTIPLE)
        return 3;
    calls = atoi(argv[1]);
    pthread_t threads[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_dup(MPI_COMM_SELF, &communicators[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &communicators[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    MPI_Finalize();
    return 0;
}
