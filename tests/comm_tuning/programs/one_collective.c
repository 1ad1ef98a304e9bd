/*
 * one_collective OPERATION BYTES: makes one collective over all ranks. For a gather and an
 * all-gather, BYTES is the total of all ranks.
 *
 * An all-reduce adds numbers whose sum depends on the order of the additions. Rank 0 prints the
 * distinct sums, which identify the algorithm.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double terms[] = {1e16, 1, -1e16, 3, 5e15, 7, -5e15, 9};

static void say_sums(const double *sums, int count)
{
    double said[64];
    int known = 0;
    for (int i = 0; i < count; i++) {
        int j = 0;
        while (j < known && said[j] != sums[i])
            j++;
        if (j == known && known < 64)
            said[known++] = sums[i];
    }
    printf("sums");
    for (int i = 0; i < known; i++)
        printf(" %.17g", said[i]);
    printf("\n");
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int bytes = argc > 2 ? atoi(argv[2]) : 0;
    char *mine = calloc(1, (size_t)bytes + 8), *all = calloc(1, (size_t)bytes + 8);
    if (argc != 3 || bytes <= 0 || mine == NULL || all == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    if (strcmp(argv[1], "broadcast") == 0) {
        MPI_Bcast(all, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    } else if (strcmp(argv[1], "allgather") == 0) {
        MPI_Allgather(mine, bytes / size, MPI_BYTE, all, bytes / size, MPI_BYTE, MPI_COMM_WORLD);
    } else if (strcmp(argv[1], "gather") == 0) {
        MPI_Gather(mine, bytes / size, MPI_BYTE, all, bytes / size, MPI_BYTE, 0, MPI_COMM_WORLD);
    } else {
        int count = bytes / (int)sizeof(double);
        for (int i = 0; i < count; i++)
            ((double *)mine)[i] = terms[rank % 8];
        MPI_Allreduce(mine, all, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0)
            say_sums((double *)all, count);
    }
    free(mine);
    free(all);
    return MPI_Finalize();
}
