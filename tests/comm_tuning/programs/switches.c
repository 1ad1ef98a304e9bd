/* Changes the algorithm of MPI_Bcast to each of its arguments in turn, and broadcasts after each. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, failures;

static void broadcast(int bytes, int root, MPI_Comm communicator)
{
    char *data = malloc((size_t)bytes);
    for (int i = 0; i < bytes; i++)
        data[i] = rank == root ? (char)(root + i * 7) : 0;
    MPI_Bcast(data, bytes, MPI_CHAR, root, communicator);
    for (int i = 0; i < bytes; i++)
        failures += data[i] != (char)(root + i * 7);
    free(data);
}

int main(int argc, char **argv)
{
    static const int bytes[] = {1, 65535, 65536, 1000000};
    int (*use)(const char *), all;
    void *address = dlsym(RTLD_DEFAULT, "hvbcast_use");
    MPI_Comm other;
    if (address == NULL)
        return 2;
    memcpy(&use, &address, sizeof use);
    failures += use("chain") != -1; /* before MPI_Init */
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    failures += use("circle") != -2;
    for (int i = 1; i < argc; i++) {
        failures += strcmp(argv[i], "start") != 0 && use(argv[i]) != 0;
        for (int root = 0; root < size; root++)
            for (int k = 0; k < 4; k++) {
                broadcast(bytes[k], root, MPI_COMM_WORLD);
                broadcast(bytes[k], root, other);
            }
    }
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d failures\n", all);
    MPI_Comm_free(&other);
    MPI_Finalize();
    return all != 0;
}
