/* Makes every blocking collective with sizes that the test knows, and checks some results. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef COUNT
#define COUNT int
#define DISPLACEMENT int
#endif

enum { MOST = 4096 };

static int rank, size;
static int ints[MOST], more_ints[MOST];
static COUNT counts[16], other_counts[16];
static DISPLACEMENT displacements[16], other_displacements[16];
static double doubles[MOST], more_doubles[MOST];

static void expect(int right, const char *what)
{
    if (!right) {
        fprintf(stderr, "rank %d: wrong %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 9);
    }
}

static void in_one_group(MPI_Comm comm)
{
    MPI_Barrier(comm);
    ints[0] = rank == size - 1 ? 77 : 0;
    MPI_Bcast(ints, 100, MPI_INT, size - 1, comm);
    expect(ints[0] == 77, "broadcast");

    MPI_Gather(rank == 0 ? MPI_IN_PLACE : doubles, 3, MPI_DOUBLE, rank == 0 ? more_doubles : NULL, 3, MPI_DOUBLE, 0,
               comm);
    MPI_Gather(doubles, 3, MPI_DOUBLE, more_doubles, 3, MPI_DOUBLE, size - 1, comm);
    for (int i = 0, at = 0; i < size; at += i + 1, i++) {
        counts[i] = i + 1;
        displacements[i] = at;
    }
    MPI_Gatherv(ints, rank + 1, MPI_INT, more_ints, counts, displacements, MPI_INT, 0, comm);

    MPI_Scatter(ints, 5, MPI_INT, rank == 0 ? MPI_IN_PLACE : more_ints, 5, MPI_INT, 0, comm);
    for (int i = 0; i < size; i++)
        counts[i] = 2;
    for (int i = 0; i < MOST; i++)
        ints[i] = i;
    for (int i = 0; i < size; i++)
        displacements[i] = 2 * i;
    MPI_Scatterv(ints, counts, displacements, MPI_INT, more_ints, 2, MPI_INT, 0, comm);
    expect(more_ints[1] == 2 * rank + 1, "scatterv");

    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, more_ints, 7, MPI_INT, comm);
    for (int i = 0, at = 0; i < size; at += i + 1, i++) {
        counts[i] = i + 1;
        displacements[i] = at;
    }
    MPI_Allgatherv(ints, rank + 1, MPI_INT, more_ints, counts, displacements, MPI_INT, comm);

    MPI_Alltoall(doubles, 2, MPI_DOUBLE, more_doubles, 2, MPI_DOUBLE, comm);
    for (int i = 0; i < size; i++) {
        other_counts[i] = rank + 1;
        other_displacements[i] = i * (rank + 1);
    }
    MPI_Alltoallv(ints, counts, displacements, MPI_INT, more_ints, other_counts, other_displacements, MPI_INT, comm);
    expect(more_ints[0] == displacements[rank], "alltoallv");

    /* Odd ranks send doubles, even ranks send ints. */
    MPI_Datatype sent[16], received[16];
    for (int i = 0; i < size; i++) {
        sent[i] = rank % 2 ? MPI_DOUBLE : MPI_INT;
        received[i] = i % 2 ? MPI_DOUBLE : MPI_INT;
        displacements[i] *= 8;
        other_displacements[i] *= 8;
    }
    MPI_Alltoallw(doubles, counts, displacements, sent, more_doubles, other_counts, other_displacements, received,
                  comm);

    MPI_Reduce(rank == 1 ? MPI_IN_PLACE : ints, rank == 1 ? more_ints : NULL, 11, MPI_INT, MPI_SUM, 1, comm);
    doubles[999] = rank + 1;
    MPI_Allreduce(doubles, more_doubles, 1000, MPI_DOUBLE, MPI_SUM, comm);
    expect(more_doubles[999] == size * (size + 1) / 2, "allreduce");
    MPI_Allreduce(MPI_IN_PLACE, more_doubles, 1000, MPI_DOUBLE, MPI_SUM, comm);
    MPI_Allreduce(doubles, more_doubles, 0, MPI_DOUBLE, MPI_SUM, comm);
    MPI_Allreduce(ints, more_ints, 13, MPI_INT, MPI_BAND, comm);
    MPI_Allreduce(ints, more_ints, 13, MPI_INT, MPI_BOR, comm);
    MPI_Reduce(ints, more_ints, 13, MPI_INT, MPI_BXOR, 0, comm);
    MPI_Reduce_scatter(ints, more_ints, counts, MPI_INT, MPI_SUM, comm);
    MPI_Reduce_scatter_block(ints, more_ints, 6, MPI_INT, MPI_SUM, comm);
    MPI_Scan(ints, more_ints, 9, MPI_INT, MPI_SUM, comm);
    expect(more_ints[8] == 8 * (rank + 1), "scan");
    MPI_Exscan(ints, more_ints, 9, MPI_INT, MPI_SUM, comm);

    MPI_Datatype three;
    MPI_Type_contiguous(3, MPI_INT, &three);
    MPI_Type_commit(&three);
    MPI_Bcast(ints, 4, three, 0, comm);
    MPI_Type_free(&three);
}

/* Each rank passes invalid values for the arguments that MPI ignores there. */
static void to_and_from_the_last_rank(int last, MPI_Comm both)
{
    for (int i = 0; i < size - 1; i++) {
        counts[i] = i + 1;
        displacements[i] = 2 * i;
    }
    if (last) {
        MPI_Gather(NULL, 100, MPI_DATATYPE_NULL, more_ints, 3, MPI_INT, MPI_ROOT, both);
        MPI_Gatherv(NULL, 100, MPI_DATATYPE_NULL, more_ints, counts, displacements, MPI_INT, MPI_ROOT, both);
        MPI_Scatter(ints, 5, MPI_INT, NULL, 100, MPI_DATATYPE_NULL, MPI_ROOT, both);
        MPI_Reduce(NULL, more_ints, 11, MPI_INT, MPI_SUM, MPI_ROOT, both);
        expect(more_ints[10] == 10 * (size - 1), "reduction between groups");
    } else {
        MPI_Gather(ints, 3, MPI_INT, NULL, 100, MPI_DATATYPE_NULL, 0, both);
        MPI_Gatherv(ints, rank + 1, MPI_INT, NULL, NULL, NULL, MPI_DATATYPE_NULL, 0, both);
        MPI_Scatter(NULL, 100, MPI_DATATYPE_NULL, more_ints, 5, MPI_INT, 0, both);
        MPI_Reduce(ints, NULL, 11, MPI_INT, MPI_SUM, 0, both);
    }
}

/* An intercommunicator: all ranks but the last in one group, the last in the other. */
static void between_two_groups(void)
{
    MPI_Comm group, both;
    int last = rank == size - 1;
    MPI_Comm_split(MPI_COMM_WORLD, last, rank, &group);
    MPI_Intercomm_create(group, 0, MPI_COMM_WORLD, last ? 0 : size - 1, 5, &both);
    if (last)
        MPI_Bcast(more_ints, 50, MPI_INT, 0, both);
    else if (rank == 0)
        MPI_Bcast(ints, 50, MPI_INT, MPI_ROOT, both);
    else
        MPI_Bcast(ints, 50, MPI_INT, MPI_PROC_NULL, both);
    expect(!last || more_ints[49] == 49, "broadcast between groups");
    MPI_Allgather(ints, 2, MPI_INT, more_ints, 2, MPI_INT, both);
    to_and_from_the_last_rank(last, both);
    MPI_Comm_free(&both);
    MPI_Comm_free(&group);
}

static void among_neighbours(void)
{
    MPI_Comm ring, line;
    int dimensions[] = {size}, periods[] = {1};
    COUNT same[] = {4, 4};
    DISPLACEMENT offsets[] = {0, 4};
    MPI_Cart_create(MPI_COMM_WORLD, 1, dimensions, periods, 0, &ring);
    MPI_Neighbor_allgather(ints, 3, MPI_INT, more_ints, 3, MPI_INT, ring);
    MPI_Neighbor_allgatherv(ints, 4, MPI_INT, more_ints, same, offsets, MPI_INT, ring);
    MPI_Neighbor_alltoall(doubles, 2, MPI_DOUBLE, more_doubles, 2, MPI_DOUBLE, ring);
    MPI_Neighbor_alltoallv(ints, same, offsets, MPI_INT, more_ints, same, offsets, MPI_INT, ring);
    MPI_Datatype types[] = {MPI_DOUBLE, MPI_DOUBLE};
    MPI_Aint places[] = {0, 32};
    MPI_Neighbor_alltoallw(doubles, same, places, types, more_doubles, same, places, types, ring);
    MPI_Comm_free(&ring);

    int before = (rank + size - 1) % size, after = (rank + 1) % size, weight = 1;
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &before, &weight, 1, &after, &weight, MPI_INFO_NULL, 0, &line);
    ints[0] = rank;
    MPI_Neighbor_allgather(ints, 5, MPI_INT, more_ints, 5, MPI_INT, line);
    expect(more_ints[0] == before, "allgather among neighbours");
    MPI_Comm_free(&line);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    in_one_group(MPI_COMM_WORLD);
    between_two_groups();
    among_neighbours();
    MPI_Finalize();
    return 0;
}
