/*
 * steady SECONDS LATE_RANK [PAUSE]: marks steps, each with two all-reduces of 64 KiB and one
 * broadcast of 1 MiB. Before them the ranks sleep for PAUSE ms (10 by default), the late rank 10 ms
 * longer. Rank 0 prints what it did.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static float in[16384], out[16384], model[262144];
    int rank, late = argc > 2 ? atoi(argv[2]) : -1;
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    int pause = argc > 3 ? atoi(argv[3]) : 10;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double end = MPI_Wtime() + seconds;
    int go_on = 1;
    for (long step = 0; go_on; step++) {
        MPI_Pcontrol(1);
        usleep(1000 * (pause + (rank == late ? 10 : 0)));
        MPI_Allreduce(in, out, 16384, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(in, out, 16384, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        model[0] = rank == 0 && MPI_Wtime() > end;
        MPI_Bcast(model, 262144, MPI_FLOAT, 0, MPI_COMM_WORLD);
        go_on = model[0] == 0;
        if (rank == 0 && step % 50 == 0)
            printf("step %ld%s\n", step, step ? "" : ": warning: \033[31mred\033[0m <b>bold</b>");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
