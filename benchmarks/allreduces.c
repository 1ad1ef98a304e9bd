/* allreduces CALLS: makes all-reduces of 8 bytes over all ranks. */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    double in = 1, out;
    for (long call = argc > 1 ? atol(argv[1]) : 0; call > 0; call--)
        MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
