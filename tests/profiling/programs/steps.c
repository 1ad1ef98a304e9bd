/*
 * steps STEPS [CLOSE]: one broadcast, then STEPS steps of two all-reduces on the thread that marks
 * them, and two on another thread. CLOSE 1: marks the end of the last step, too.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static MPI_Comm apart;

static void *work(void *argument)
{
    double in[500] = {0}, out[500];
    for (int i = 0; i < 2; i++)
        MPI_Allreduce(in, out, 500, MPI_DOUBLE, MPI_SUM, apart);
    return argument;
}

int main(int argc, char **argv)
{
    int provided, steps = argc > 1 ? atoi(argv[1]) : 1;
    double in[1000] = {0}, out[1000];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_dup(MPI_COMM_WORLD, &apart);
    MPI_Bcast(in, 1000, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int step = 0; step < steps; step++) {
        pthread_t worker;
        MPI_Pcontrol(1);
        pthread_create(&worker, NULL, work, NULL);
        usleep(2000);
        MPI_Allreduce(in, out, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(in, out, 10, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        pthread_join(worker, NULL);
    }
    if (argc > 2 && atoi(argv[2]) == 1)
        MPI_Pcontrol(1);
    MPI_Finalize();
    return 0;
}
