/* many_events CALLS: makes all-reduces of 4 bytes to 16 KiB in a communicator of one rank. */
#include <mpi.h>
#include <stdlib.h>

enum { MOST = 4096 };

int main(int argc, char **argv)
{
    static int in[MOST], out[MOST];
    MPI_Init(&argc, &argv);
    long calls = argc > 1 ? atol(argv[1]) : 0;
    for (long call = 0; call < calls; call++)
        MPI_Allreduce(in, out, 1 << call % 13, MPI_INT, call % 16 ? MPI_SUM : MPI_BOR, MPI_COMM_SELF);
    MPI_Finalize();
    return 0;
}
