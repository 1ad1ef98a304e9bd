/* Starts and ends, and sends nothing. */
#include <mpi.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    return MPI_Finalize();
}
