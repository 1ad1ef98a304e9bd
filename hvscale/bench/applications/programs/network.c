/* The network: round-trip times of one byte, and the bandwidth between pairs of ranks that all send at once.
 * Usage: network pings=N rounds=M */
#include "common.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALLEST = 16, LARGEST = 1 << 20, WINDOW = 16, WARM_UP = 2, LINE_BYTES = 1 << 20, DATA = 1, DONE = 2 };

static int ascending(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

/* Rank 0 pings the other ranks one after another. `times`: on rank 0, the seconds of all pings in ascending order. */
static void ping_all(int rank, int np, long long pings, double *times)
{
    char byte = 0;
    for (int other = 1; other < np; other++) {
        for (long long i = -WARM_UP; i < pings; i++) {
            double start = MPI_Wtime();
            if (rank == 0) {
                MPI_Send(&byte, 1, MPI_CHAR, other, DATA, MPI_COMM_WORLD);
                MPI_Recv(&byte, 1, MPI_CHAR, other, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                if (i >= 0)
                    times[(other - 1) * pings + i] = MPI_Wtime() - start;
            } else if (rank == other) {
                MPI_Recv(&byte, 1, MPI_CHAR, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(&byte, 1, MPI_CHAR, 0, DATA, MPI_COMM_WORLD);
            }
        }
    }
    if (rank == 0)
        qsort(times, (size_t)((np - 1) * pings), sizeof *times, ascending);
}

/* Each rank of the lower half sends windows of messages to a rank of the upper half, which acknowledges each window.
 * Returns the bandwidth of this pair in bytes per second. */
static double pair_bandwidth(int rank, int np, int bytes, long long rounds, char *buffers)
{
    int half = np / 2, sends = rank < half, partner = sends ? rank + half : rank - half;
    char byte = 0;
    double start = 0;
    for (long long i = -WARM_UP; i < rounds; i++) {
        if (i == 0)
            start = start_timer();
        MPI_Request requests[WINDOW];
        for (int message = 0; message < WINDOW; message++) {
            char *buffer = buffers + (size_t)message * LARGEST;
            if (sends)
                MPI_Isend(buffer, bytes, MPI_CHAR, partner, DATA, MPI_COMM_WORLD, &requests[message]);
            else
                MPI_Irecv(buffer, bytes, MPI_CHAR, partner, DATA, MPI_COMM_WORLD, &requests[message]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (sends)
            MPI_Recv(&byte, 1, MPI_CHAR, partner, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&byte, 1, MPI_CHAR, partner, DONE, MPI_COMM_WORLD);
    }
    return (double)bytes * WINDOW * (double)rounds / (MPI_Wtime() - start);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    long long pings = read_parameter(argc, argv, "pings", 1), rounds = read_parameter(argc, argv, "rounds", 1);
    int rank, np;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    require(np % 2 == 0, "network", "ranks send in pairs, so np must be even");
    setvbuf(stdout, NULL, _IOFBF, LINE_BYTES); /* so that output of MPI cannot split the line */
    size_t count = (size_t)(np - 1) * (size_t)pings;
    double *times = allocate(count, sizeof *times), *bandwidths = allocate((size_t)np, sizeof *bandwidths);
    char *buffers = allocate(WINDOW, LARGEST);

    double start = start_timer();
    ping_all(rank, np, pings, times);
    if (rank == 0)
        printf(
            "{\"ping_seconds\": {\"min\": %.9f, \"median\": %.9f, \"max\": %.9f}, \"bandwidth\": [", times[0],
            (times[(count - 1) / 2] + times[count / 2]) / 2, times[count - 1]
        );
    for (int bytes = SMALLEST; bytes <= LARGEST; bytes *= 2) {
        double own = pair_bandwidth(rank, np, bytes, rounds, buffers);
        MPI_Gather(&own, 1, MPI_DOUBLE, bandwidths, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (rank != 0)
            continue;
        printf("%s{\"bytes\": %d, \"bytes_per_second\": [", bytes > SMALLEST ? ", " : "", bytes);
        for (int pair = 0; pair < np / 2; pair++)
            printf("%s%.0f", pair > 0 ? ", " : "", bandwidths[pair]);
        printf("]}");
    }
    double seconds = slowest_seconds(start);
    if (rank == 0)
        printf("], \"seconds\": %.9f}\n", seconds);
    free(times);
    free(bandwidths);
    free(buffers);
    MPI_Finalize();
    return 0;
}
