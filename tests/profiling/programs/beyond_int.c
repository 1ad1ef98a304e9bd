/*
 * Runs as one rank: calls whose counts, or sums of counts, exceed an int. None moves that much
 * data.
 */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Count many = ((MPI_Count)1 << 31) + 5, counts[] = {many + 2};
    MPI_Aint displacements[] = {0};
    MPI_Datatype bytes[] = {MPI_BYTE};
    MPI_Request request;
    MPI_Comm self = MPI_COMM_SELF;
    char *data = malloc((size_t)many + 8); /* few pages are touched */
    MPI_Bcast_c(data, many, MPI_BYTE, 0, self);
    MPI_Ibcast_c(data, 2 * many, MPI_BYTE, 0, self, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Allgather_c(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, many + 1, MPI_BYTE, self);
    MPI_Allgatherv_c(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, displacements, MPI_BYTE, self);
    MPI_Alltoallw_c(MPI_IN_PLACE, NULL, NULL, NULL, data, counts, displacements, bytes, self);
    MPI_Reduce_scatter_c(MPI_IN_PLACE, data, counts, MPI_BYTE, MPI_BOR, self);
    MPI_Irecv_c(data, many + 3, MPI_BYTE, 0, 1, self, &request);
    char one = 1;
    MPI_Send(&one, 1, MPI_BYTE, 0, 1, self);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    free(data);
    MPI_Finalize();
    return 0;
}
