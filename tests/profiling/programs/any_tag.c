/* Rank 0 takes one message of any tag from each other rank, as a program with workers does. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

enum { TAG = 7 };

/* Sleeps while it waits: ranks may be late by seconds. */
static void take_one(void)
{
    int found = 0;
    long taken = 0;
    MPI_Status status;
    while (!found) {
        usleep(10000);
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, &status);
    }
    int bytes;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (status.MPI_TAG != TAG || bytes != sizeof taken) {
        printf("a message of %d bytes with tag %d, which no rank sent\n", bytes, status.MPI_TAG);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Recv(&taken, sizeof taken, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
    int rank, size;
    long sent = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0)
        for (int other = 1; other < size; other++)
            take_one();
    else
        MPI_Send(&sent, sizeof sent, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
