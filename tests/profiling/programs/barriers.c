/* Makes the given number of barriers in a communicator of its own rank only; with 0, all-reduces over all ranks for ever. */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int calls = atoi(argv[1]);
    for (int i = 0; i < calls; i++)
        MPI_Barrier(MPI_COMM_SELF);
    double in = 1, out;
    while (calls == 0)
        MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
