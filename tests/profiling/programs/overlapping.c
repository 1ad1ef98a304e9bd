/* Four threads repeatedly start eight concurrent non-blocking all-reduces of 1 to 8 ints. */
#include <mpi.h>
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200, AT_ONCE = 8 };

static MPI_Comm communicators[THREADS];

static void *work(void *argument)
{
    int in[AT_ONCE] = {0}, out[AT_ONCE][AT_ONCE];
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Request requests[AT_ONCE + 1];
        int token = 0, from = 0;
        for (int i = 0; i < AT_ONCE; i++)
            MPI_Iallreduce(in, out[i], i + 1, MPI_INT, MPI_SUM, *(MPI_Comm *)argument, &requests[i]);
        /* The receive among them is not a collective. */
        MPI_Irecv(&from, 1, MPI_INT, 0, 1, *(MPI_Comm *)argument, &requests[AT_ONCE]);
        int rank;
        MPI_Comm_rank(*(MPI_Comm *)argument, &rank);
        MPI_Send(&token, 1, MPI_INT, rank, 1, *(MPI_Comm *)argument);
        int index;
        MPI_Waitany(AT_ONCE + 1, requests, &index, MPI_STATUS_IGNORE);
        MPI_Waitall(AT_ONCE + 1, requests, MPI_STATUSES_IGNORE);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided < MPI_THREAD_MULTIPLE)
        return 3;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_dup(MPI_COMM_SELF, &communicators[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &communicators[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    MPI_Finalize();
    return 0;
}
