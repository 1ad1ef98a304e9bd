/* point_to_point.c with the function with large counts for each call. */
#include <mpi.h>

#define MPI_Send MPI_Send_c
#define MPI_Ssend MPI_Ssend_c
#define MPI_Bsend MPI_Bsend_c
#define MPI_Rsend MPI_Rsend_c
#define MPI_Recv MPI_Recv_c
#define MPI_Isend MPI_Isend_c
#define MPI_Issend MPI_Issend_c
#define MPI_Ibsend MPI_Ibsend_c
#define MPI_Irsend MPI_Irsend_c
#define MPI_Irecv MPI_Irecv_c
#define MPI_Mrecv MPI_Mrecv_c
#define MPI_Imrecv MPI_Imrecv_c
#define MPI_Sendrecv MPI_Sendrecv_c
#define MPI_Sendrecv_replace MPI_Sendrecv_replace_c

#include "point_to_point.c"
