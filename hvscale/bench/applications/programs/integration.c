/* Master and workers: the integral of 1/(1+x) over [1, 100] by the midpoint rule. The range is divided into packets. A
 * worker that returns a sum gets the next packet, so slow workers get fewer.
 * Usage: integration intervals=N packets=M */
#include "common.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MASTER = 0, WORK = 1, SUM = 2, STOP = 3 };

static const double FROM = 1, TO = 100;

/* The first interval of a packet. Packet sizes differ by at most one interval. */
static long long first_of(long long packet, long long packets, long long intervals)
{
    long long each = intervals / packets, longer = intervals % packets;
    return packet * each + (packet < longer ? packet : longer);
}

static double integrate(long long begin, long long end, double width)
{
    double sum = 0;
    for (long long i = begin; i < end; i++)
        sum += 1 / (1 + FROM + ((double)i + 0.5) * width);
    return sum * width;
}

/* Stores each sum by its packet, so that the sums are added in the same order whichever worker computes them. */
static double run_master(int workers, long long packets, long long *packets_done)
{
    double *sums = allocate((size_t)packets, sizeof *sums);
    long long *assigned = allocate((size_t)workers + 1, sizeof *assigned);
    long long next = 0, working = 0;
    for (int worker = 1; worker <= workers; worker++) {
        int tag = next < packets ? WORK : STOP;
        assigned[worker] = next;
        MPI_Send(&next, 1, MPI_LONG_LONG, worker, tag, MPI_COMM_WORLD);
        if (tag == WORK) {
            next++;
            working++;
        }
    }
    while (working > 0) {
        double sum;
        MPI_Status status;
        MPI_Recv(&sum, 1, MPI_DOUBLE, MPI_ANY_SOURCE, SUM, MPI_COMM_WORLD, &status);
        int worker = status.MPI_SOURCE;
        sums[assigned[worker]] = sum;
        packets_done[worker]++;
        int tag = next < packets ? WORK : STOP;
        assigned[worker] = next;
        MPI_Send(&next, 1, MPI_LONG_LONG, worker, tag, MPI_COMM_WORLD);
        if (tag == WORK)
            next++;
        else
            working--;
    }
    double integral = 0;
    for (long long packet = 0; packet < packets; packet++)
        integral += sums[packet];
    free(sums);
    free(assigned);
    return integral;
}

static void run_worker(long long packets, long long intervals)
{
    double width = (TO - FROM) / (double)intervals;
    for (;;) {
        long long packet;
        MPI_Status status;
        MPI_Recv(&packet, 1, MPI_LONG_LONG, MASTER, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        if (status.MPI_TAG == STOP)
            return;
        double sum =
            integrate(first_of(packet, packets, intervals), first_of(packet + 1, packets, intervals), width);
        MPI_Send(&sum, 1, MPI_DOUBLE, MASTER, SUM, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    long long intervals = read_parameter(argc, argv, "intervals", 1), packets = read_parameter(argc, argv, "packets", 1);
    int rank, np;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    require(np > 1, "integration", "needs a master and at least one worker");
    long long *packets_done = allocate((size_t)np, sizeof *packets_done);
    double integral = 0, start = start_timer();
    if (rank == MASTER)
        integral = run_master(np - 1, packets, packets_done);
    else
        run_worker(packets, intervals);
    double seconds = slowest_seconds(start);
    if (rank == MASTER) {
        printf("{\"seconds\": %.9f, \"integral\": %.17g, \"packets_per_worker\": [", seconds, integral);
        for (int worker = 1; worker < np; worker++)
            printf("%s%lld", worker > 1 ? ", " : "", packets_done[worker]);
        printf("]}\n");
    }
    free(packets_done);
    MPI_Finalize();
    return 0;
}
