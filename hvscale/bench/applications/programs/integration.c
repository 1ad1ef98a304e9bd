/* Master and slaves: the integral of 1/(1+x) over [1, 100] by the midpoint rule. The range is cut into packets; a slave that returns a sum gets the
 * next packet, so that a slow one gets fewer. integration intervals=N packets=M */
#include "common.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MASTER = 0, WORK = 1, SUM = 2, NO_MORE = 3 };

static const double FROM = 1, TO = 100;

/* The first interval of a packet: packets differ by one interval at most. */
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

/* Who gets a packet is remembered, so that its sum has a place of its own: they are added in the same order however the slaves are mixed. */
static double lead(int slaves, long long packets, long long *given_to)
{
    double *sums = memory((size_t)packets, sizeof *sums);
    long long *at = memory((size_t)slaves + 1, sizeof *at);
    long long next = 0, at_work = 0;
    for (int slave = 1; slave <= slaves; slave++) {
        int tag = next < packets ? WORK : NO_MORE;
        at[slave] = next;
        MPI_Send(&next, 1, MPI_LONG_LONG, slave, tag, MPI_COMM_WORLD);
        if (tag == WORK) {
            next++;
            at_work++;
        }
    }
    while (at_work > 0) {
        double sum;
        MPI_Status status;
        MPI_Recv(&sum, 1, MPI_DOUBLE, MPI_ANY_SOURCE, SUM, MPI_COMM_WORLD, &status);
        int slave = status.MPI_SOURCE;
        sums[at[slave]] = sum;
        given_to[slave]++;
        int tag = next < packets ? WORK : NO_MORE;
        at[slave] = next;
        MPI_Send(&next, 1, MPI_LONG_LONG, slave, tag, MPI_COMM_WORLD);
        if (tag == WORK)
            next++;
        else
            at_work--;
    }
    double integral = 0;
    for (long long packet = 0; packet < packets; packet++)
        integral += sums[packet];
    free(sums);
    free(at);
    return integral;
}

static void follow(long long packets, long long intervals)
{
    double width = (TO - FROM) / (double)intervals;
    for (;;) {
        long long packet;
        MPI_Status status;
        MPI_Recv(&packet, 1, MPI_LONG_LONG, MASTER, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        if (status.MPI_TAG == NO_MORE)
            return;
        double sum =
            integrate(first_of(packet, packets, intervals), first_of(packet + 1, packets, intervals), width);
        MPI_Send(&sum, 1, MPI_DOUBLE, MASTER, SUM, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    long long intervals = parameter(argc, argv, "intervals", 1), packets = parameter(argc, argv, "packets", 1);
    int rank, np;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    require(np > 1, "integration", "a master without a slave computes nothing");
    long long *given_to = memory((size_t)np, sizeof *given_to);
    double integral = 0, start = start_together();
    if (rank == MASTER)
        integral = lead(np - 1, packets, given_to);
    else
        follow(packets, intervals);
    double seconds = slowest_since(start);
    if (rank == MASTER) {
        printf("{\"seconds\": %.9f, \"integral\": %.17g, \"packets_of_slaves\": [", seconds, integral);
        for (int slave = 1; slave < np; slave++)
            printf("%s%lld", slave > 1 ? ", " : "", given_to[slave]);
        printf("]}\n");
    }
    free(given_to);
    MPI_Finalize();
    return 0;
}
