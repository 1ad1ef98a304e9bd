/*
 * kinds_in_turn ROUNDS: in each round one call of each of 240 kinds: six collectives, blocking and
 * non-blocking, of 1 byte to 512 KiB.
 */
#include <mpi.h>
#include <stdlib.h>

enum { POWERS = 20 };

static char in[1 << (POWERS - 1)], out[1 << (POWERS - 1)];

static void blocking(int bytes)
{
    MPI_Bcast(in, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    MPI_Gather(in, bytes, MPI_CHAR, out, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    MPI_Scatter(in, bytes, MPI_CHAR, out, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    MPI_Allreduce(in, out, bytes, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD);
    MPI_Reduce(in, out, bytes, MPI_CHAR, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Scan(in, out, bytes, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD);
}

static void non_blocking(int bytes)
{
    MPI_Request request;
    MPI_Ibcast(in, bytes, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Igather(in, bytes, MPI_CHAR, out, bytes, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Iscatter(in, bytes, MPI_CHAR, out, bytes, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Iallreduce(in, out, bytes, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Ireduce(in, out, bytes, MPI_CHAR, MPI_SUM, 0, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Iscan(in, out, bytes, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    for (int round = 0, rounds = argc > 1 ? atoi(argv[1]) : 1; round < rounds; round++) {
        for (int power = 0; power < POWERS; power++) {
            blocking(1 << power);
            non_blocking(1 << power);
        }
    }
    MPI_Finalize();
    return 0;
}
