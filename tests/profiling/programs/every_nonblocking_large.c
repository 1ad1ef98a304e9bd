/* every_nonblocking.c with the function with large counts for each call. */
#include <mpi.h>

#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define MPI_Ibcast MPI_Ibcast_c
#define MPI_Igather MPI_Igather_c
#define MPI_Igatherv MPI_Igatherv_c
#define MPI_Iscatter MPI_Iscatter_c
#define MPI_Iscatterv MPI_Iscatterv_c
#define MPI_Iallgather MPI_Iallgather_c
#define MPI_Iallgatherv MPI_Iallgatherv_c
#define MPI_Ialltoall MPI_Ialltoall_c
#define MPI_Ialltoallv MPI_Ialltoallv_c
#define MPI_Ialltoallw MPI_Ialltoallw_c
#define MPI_Ireduce MPI_Ireduce_c
#define MPI_Iallreduce MPI_Iallreduce_c
#define MPI_Ireduce_scatter MPI_Ireduce_scatter_c
#define MPI_Ireduce_scatter_block MPI_Ireduce_scatter_block_c
#define MPI_Iscan MPI_Iscan_c
#define MPI_Iexscan MPI_Iexscan_c
#define MPI_Ineighbor_allgather MPI_Ineighbor_allgather_c
#define MPI_Ineighbor_allgatherv MPI_Ineighbor_allgatherv_c
#define MPI_Ineighbor_alltoall MPI_Ineighbor_alltoall_c
#define MPI_Ineighbor_alltoallv MPI_Ineighbor_alltoallv_c
#define MPI_Ineighbor_alltoallw MPI_Ineighbor_alltoallw_c

#include "every_nonblocking.c"
