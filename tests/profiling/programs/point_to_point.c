/*
 * Makes every kind of send and receive, with sizes that the test knows, between ranks 0 and 1 only.
 */
#include <mpi.h>

enum { MOST = 4096 };

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, size, out[MOST] = {0}, in[MOST], flag, index, done, indices[4];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm world = MPI_COMM_WORLD;
    static char space[1 << 16];
    MPI_Buffer_attach(space, sizeof space);
    if (rank < 2) {
        int other = 1 - rank;
        MPI_Request requests[4];
        if (rank == 0) {
            MPI_Send(out, 1000, MPI_INT, other, 1, world);
            MPI_Send(out, 0, MPI_INT, other, 1, world);
            MPI_Ssend(out, 3, MPI_DOUBLE, other, 1, world);
            MPI_Bsend(out, 5, MPI_INT, other, 1, world);
        } else {
            MPI_Recv(in, 1000, MPI_INT, other, 1, world, MPI_STATUS_IGNORE);
            MPI_Recv(in, 0, MPI_INT, other, 1, world, MPI_STATUS_IGNORE);
            MPI_Recv(in, 3, MPI_DOUBLE, other, 1, world, MPI_STATUS_IGNORE);
            MPI_Recv(in, MOST, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, world, MPI_STATUS_IGNORE);
        }
        MPI_Irecv(in, 200, MPI_INT, other, 2, world, &requests[0]);
        MPI_Irecv(in + 200, 200, MPI_INT, other, 2, world, &requests[1]);
        MPI_Barrier(world);
        MPI_Rsend(out, 200, MPI_INT, other, 2, world);
        MPI_Irsend(out, 200, MPI_INT, other, 2, world, &requests[2]);
        MPI_Isend(out, 7, MPI_INT, other, 3, world, &requests[3]);
        MPI_Waitsome(4, requests, &done, indices, MPI_STATUSES_IGNORE);
        MPI_Recv(in, 7, MPI_INT, other, 3, world, MPI_STATUS_IGNORE);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        MPI_Issend(out, 2, MPI_DOUBLE, other, 4, world, &requests[0]);
        MPI_Ibsend(out, 2, MPI_INT, other, 5, world, &requests[1]);
        MPI_Message message;
        MPI_Mprobe(other, 4, world, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(in, 2, MPI_DOUBLE, &message, MPI_STATUS_IGNORE);
        MPI_Mprobe(other, 5, world, &message, MPI_STATUS_IGNORE);
        MPI_Imrecv(in, 2, MPI_INT, &message, &requests[2]);
        for (int left = 3; left > 0;) {
            MPI_Testany(3, requests, &index, &flag, MPI_STATUS_IGNORE);
            left -= flag;
        }
        MPI_Sendrecv(out, 300, MPI_INT, other, 6, in, MOST, MPI_INT, other, 6, world, MPI_STATUS_IGNORE);
        MPI_Sendrecv_replace(in, 400, MPI_INT, other, 7, other, 7, world, MPI_STATUS_IGNORE);
        MPI_Send(out, 99, MPI_INT, MPI_PROC_NULL, 8, world);
        MPI_Recv(in, 99, MPI_INT, MPI_PROC_NULL, 8, world, MPI_STATUS_IGNORE);
    } else {
        MPI_Barrier(world);
    }
    int detached;
    void *buffer;
    MPI_Buffer_detach(&buffer, &detached);
    MPI_Finalize();
    return 0;
}
