/*
 * every_collective.c with the non-blocking function for each call, completed by each kind of Wait
 * and Test.
 */
#include <mpi.h>

static MPI_Request requests[2];
static int calls;

static void finish(void)
{
    int index, count, done = 0, indices[2];
    MPI_Status statuses[2];
    requests[1] = MPI_REQUEST_NULL;
    switch (calls++ % 8) {
    case 0: MPI_Wait(&requests[0], MPI_STATUS_IGNORE); break;
    case 1: MPI_Waitall(2, requests, MPI_STATUSES_IGNORE); break;
    case 2: MPI_Waitany(2, requests, &index, MPI_STATUS_IGNORE); break;
    case 3: MPI_Waitsome(2, requests, &count, indices, MPI_STATUSES_IGNORE); break;
    case 4: while (!done) MPI_Test(&requests[0], &done, &statuses[0]); break;
    case 5: while (!done) MPI_Testall(2, requests, &done, statuses); break;
    case 6: while (!done) MPI_Testany(2, requests, &index, &done, &statuses[0]); break;
    case 7: while (!done) { MPI_Testsome(2, requests, &done, indices, statuses); } break;
    }
}

#define MPI_Barrier(...) (MPI_Ibarrier(__VA_ARGS__, requests), finish())
#define MPI_Bcast(...) (MPI_Ibcast(__VA_ARGS__, requests), finish())
#define MPI_Gather(...) (MPI_Igather(__VA_ARGS__, requests), finish())
#define MPI_Gatherv(...) (MPI_Igatherv(__VA_ARGS__, requests), finish())
#define MPI_Scatter(...) (MPI_Iscatter(__VA_ARGS__, requests), finish())
#define MPI_Scatterv(...) (MPI_Iscatterv(__VA_ARGS__, requests), finish())
#define MPI_Allgather(...) (MPI_Iallgather(__VA_ARGS__, requests), finish())
#define MPI_Allgatherv(...) (MPI_Iallgatherv(__VA_ARGS__, requests), finish())
#define MPI_Alltoall(...) (MPI_Ialltoall(__VA_ARGS__, requests), finish())
#define MPI_Alltoallv(...) (MPI_Ialltoallv(__VA_ARGS__, requests), finish())
#define MPI_Alltoallw(...) (MPI_Ialltoallw(__VA_ARGS__, requests), finish())
#define MPI_Reduce(...) (MPI_Ireduce(__VA_ARGS__, requests), finish())
#define MPI_Allreduce(...) (MPI_Iallreduce(__VA_ARGS__, requests), finish())
#define MPI_Reduce_scatter(...) (MPI_Ireduce_scatter(__VA_ARGS__, requests), finish())
#define MPI_Reduce_scatter_block(...) (MPI_Ireduce_scatter_block(__VA_ARGS__, requests), finish())
#define MPI_Scan(...) (MPI_Iscan(__VA_ARGS__, requests), finish())
#define MPI_Exscan(...) (MPI_Iexscan(__VA_ARGS__, requests), finish())
#define MPI_Neighbor_allgather(...) (MPI_Ineighbor_allgather(__VA_ARGS__, requests), finish())
#define MPI_Neighbor_allgatherv(...) (MPI_Ineighbor_allgatherv(__VA_ARGS__, requests), finish())
#define MPI_Neighbor_alltoall(...) (MPI_Ineighbor_alltoall(__VA_ARGS__, requests), finish())
#define MPI_Neighbor_alltoallv(...) (MPI_Ineighbor_alltoallv(__VA_ARGS__, requests), finish())
#define MPI_Neighbor_alltoallw(...) (MPI_Ineighbor_alltoallw(__VA_ARGS__, requests), finish())

#include "every_collective.c"
