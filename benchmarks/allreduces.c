/* allreduces CALLS [PAUSE]: makes all-reduces of 8 bytes over all ranks, with PAUSE us between them. */
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    double in = 1, out;
    long pause = argc > 2 ? atol(argv[2]) : 0;
    for (long call = argc > 1 ? atol(argv[1]) : 0; call > 0; call--) {
        MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (pause > 0)
            usleep(pause);
    }
    MPI_Finalize();
    return 0;
}
