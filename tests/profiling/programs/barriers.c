/*
 * barriers N: makes N barriers in MPI_COMM_SELF. With 0 it makes all-reduces over all ranks
 * forever.
 */
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
