/*
 * many_kinds COMMUNICATORS: all-reduces, broadcasts, reduces and scans of 1 byte to 512 KiB on
 * MPI_COMM_WORLD, then a barrier on each of COMMUNICATORS further communicators.
 */
#include <mpi.h>
#include <stdlib.h>

enum { POWERS = 20 };

int main(int argc, char **argv)
{
    static char in[1 << (POWERS - 1)], out[1 << (POWERS - 1)];
    MPI_Init(&argc, &argv);
    for (int power = 0; power < POWERS; power++) {
        MPI_Allreduce(in, out, 1 << power, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD);
        MPI_Bcast(in, 1 << power, MPI_CHAR, 0, MPI_COMM_WORLD);
        MPI_Reduce(in, out, 1 << power, MPI_CHAR, MPI_SUM, 0, MPI_COMM_WORLD);
        MPI_Scan(in, out, 1 << power, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD);
    }
    for (int i = 0, count = argc > 1 ? atoi(argv[1]) : 0; i < count; i++) {
        MPI_Comm own;
        MPI_Comm_dup(MPI_COMM_SELF, &own);
        MPI_Barrier(own);
    }
    MPI_Finalize();
    return 0;
}
