/*
 * The baseline for `hvscale bench allreduce`: a plain loop around MPI_Allreduce of float32.
 * Arguments: BYTES WARMUP SAMPLES CALLS for each size. Prints for each size the mean microseconds
 * of a call on the slowest rank.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int given = 1; given + 3 < argc; given += 4) {
        int count = atoi(argv[given]) / (int)sizeof(float), warmup = atoi(argv[given + 1]);
        int samples = atoi(argv[given + 2]), calls = atoi(argv[given + 3]);
        size_t bytes = ((size_t)count * sizeof(float) + 4095) / 4096 * 4096;
        float *own = aligned_alloc(4096, bytes), *sum = aligned_alloc(4096, bytes);
        memset(own, 0, bytes);
        memset(sum, 0, bytes);
        double total = 0, spent[samples], slowest[samples];
        for (int sample = -1; sample < samples; sample++) {
            int repeats = sample < 0 ? warmup : calls;
            MPI_Barrier(MPI_COMM_WORLD);
            double began = MPI_Wtime();
            for (int i = 0; i < repeats; i++)
                MPI_Allreduce(own, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (sample >= 0)
                spent[sample] = (MPI_Wtime() - began) / repeats;
        }
        MPI_Allreduce(spent, slowest, samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        for (int sample = 0; sample < samples; sample++)
            total += slowest[sample];
        if (rank == 0)
            printf("%.4f\n", 1e6 * total / samples);
        free(own);
        free(sum);
    }
    MPI_Finalize();
    return 0;
}
