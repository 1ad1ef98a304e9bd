/*
 * Makes one all-reduce on each of many communicators; its size identifies the communicator. Marks
 * two steps.
 */
#include <mpi.h>

static int rank, size;

static void mark(MPI_Comm comm, int which)
{
    char in[100] = {0}, out[100];
    if (comm != MPI_COMM_NULL)
        MPI_Allreduce(in, out, which, MPI_CHAR, MPI_SUM, comm);
}

static void mark_and_free(MPI_Comm comm, int which)
{
    mark(comm, which);
    if (comm != MPI_COMM_NULL)
        MPI_Comm_free(&comm);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm made, parent;
    mark(MPI_COMM_WORLD, 1);
    MPI_Pcontrol(1);
    MPI_Pcontrol(0);
    /* Each is freed before the next is created, so MPI is likely to reuse the handle. */
    for (int which = 2; which < 5; which++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &made);
        mark_and_free(made, which);
    }
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0, -rank, &made);
    mark_and_free(made, rank == 0 ? 5 : 6);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &made);
    mark_and_free(made, 7);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &parent);
    mark(parent, 8);
    MPI_Comm_dup_with_info(parent, MPI_INFO_NULL, &made);
    mark_and_free(made, 9);
    MPI_Comm_free(&parent);

    MPI_Group world, first;
    int one = 1;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_excl(world, 1, &one, &first);
    MPI_Comm_create(MPI_COMM_WORLD, first, &made);
    mark_and_free(made, 10);
    /* Only its members create it, so the ranks' numbers of communicators differ from here on. */
    if (rank != 1) {
        MPI_Comm_create_group(MPI_COMM_WORLD, first, 3, &made);
        mark_and_free(made, 11);
    }
    MPI_Request request;
    MPI_Comm_idup(MPI_COMM_WORLD, &made, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    mark_and_free(made, 12);

    int dimensions[] = {size}, periods[] = {1}, keep[] = {1};
    MPI_Cart_create(MPI_COMM_WORLD, 1, dimensions, periods, 0, &parent);
    mark(parent, 13);
    MPI_Cart_sub(parent, keep, &made);
    mark_and_free(made, 14);
    MPI_Comm_free(&parent);
    int weights[] = {1}; /* gcc warns about the address of MPI_UNWEIGHTED */
    int neighbour = (rank + 1) % size, before = (rank + size - 1) % size;
    MPI_Dist_graph_create_adjacent(
        MPI_COMM_WORLD, 1, &before, weights, 1, &neighbour, weights, MPI_INFO_NULL, 0, &made);
    mark_and_free(made, 15);
    MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &rank, &one, &neighbour, weights, MPI_INFO_NULL, 0, &made);
    mark_and_free(made, 16);

    MPI_Comm side, both;
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &side);
    MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, rank == 0 ? 1 : 0, 4, &both);
    mark(both, 17);
    MPI_Intercomm_merge(both, rank == 0, &made);
    mark_and_free(made, 18);
    MPI_Comm_dup(both, &made);
    mark_and_free(made, 19);
    MPI_Comm_disconnect(&both);
    MPI_Comm_free(&side);
    mark(MPI_COMM_SELF, 20);
    MPI_Comm_dup(MPI_COMM_SELF, &made);
    mark_and_free(made, 21);
    mark(MPI_COMM_WORLD, 22);
    MPI_Pcontrol(1);
    MPI_Group_free(&world);
    MPI_Group_free(&first);
    MPI_Finalize();
    return 0;
}
