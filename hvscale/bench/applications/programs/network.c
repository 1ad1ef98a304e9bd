/* The network beneath the programs: how long a ping of one byte takes there and back, and the bandwidth between pairs of ranks that all send at
 * once. network pings=N rounds=M */
#include "common.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALLEST = 16, LARGEST = 1 << 20, WINDOW = 16, WARM_UP = 2, LINE = 1 << 20, DATA = 1, DONE = 2 };

static int ascending(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

/* Rank 0 pings every other rank, one after another; its times in ascending order, pings for each of them, in seconds. */
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

/* The lower half of the ranks sends windows of messages to the upper half, each of which says when it has a window: bytes a second of this pair. */
static double send_all_at_once(int rank, int np, int bytes, long long rounds, char *buffers)
{
    int half = np / 2, sends = rank < half, partner = sends ? rank + half : rank - half;
    char byte = 0;
    double start = 0;
    for (long long i = -WARM_UP; i < rounds; i++) {
        if (i == 0)
            start = start_together();
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
    long long pings = parameter(argc, argv, "pings", 1), rounds = parameter(argc, argv, "rounds", 1);
    int rank, np;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    require(np % 2 == 0, "network", "ranks send in pairs, so np is even");
    setvbuf(stdout, NULL, _IOFBF, LINE); /* nothing that MPI says may come into the line */
    size_t count = (size_t)(np - 1) * (size_t)pings;
    double *times = memory(count, sizeof *times), *of_pairs = memory((size_t)np, sizeof *of_pairs);
    char *buffers = memory(WINDOW, LARGEST);

    double start = start_together();
    ping_all(rank, np, pings, times);
    if (rank == 0)
        printf(
            "{\"ping_seconds\": {\"min\": %.9f, \"median\": %.9f, \"max\": %.9f}, \"bandwidth\": [", times[0],
            (times[(count - 1) / 2] + times[count / 2]) / 2, times[count - 1]
        );
    for (int bytes = SMALLEST; bytes <= LARGEST; bytes *= 2) {
        double own = send_all_at_once(rank, np, bytes, rounds, buffers);
        MPI_Gather(&own, 1, MPI_DOUBLE, of_pairs, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (rank != 0)
            continue;
        printf("%s{\"bytes\": %d, \"bytes_per_second\": [", bytes > SMALLEST ? ", " : "", bytes);
        for (int pair = 0; pair < np / 2; pair++)
            printf("%s%.0f", pair > 0 ? ", " : "", of_pairs[pair]);
        printf("]}");
    }
    double seconds = slowest_since(start);
    if (rank == 0)
        printf("], \"seconds\": %.9f}\n", seconds);
    free(times);
    free(of_pairs);
    free(buffers);
    MPI_Finalize();
    return 0;
}
