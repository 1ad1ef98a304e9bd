/* Calls MPI_Bcast as any program does; the test's decision table selects the algorithms. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, TIMES = 40 };

static int rank, size, failures;

static void expect(int right, const char *what)
{
    if (!right) {
        failures++;
        fprintf(stderr, "rank %d: %s\n", rank, what);
    }
}

static int right(const char *data, int bytes, int seed)
{
    for (int i = 0; i < bytes; i++)
        if (data[i] != (char)(seed + i * 7))
            return 0;
    return 1;
}

static void broadcast(int bytes, int root, MPI_Comm communicator, int own)
{
    char *data = malloc((size_t)bytes + 1);
    for (int i = 0; i < bytes; i++)
        data[i] = own == root ? (char)(root + i * 7) : 0;
    expect(MPI_Bcast(data, bytes, MPI_CHAR, root, communicator) == MPI_SUCCESS, "refused");
    expect(right(data, bytes, root), "wrong data");
    free(data);
}

static void *in_thread(void *communicator)
{
    for (int i = 0; i < TIMES; i++)
        broadcast(3000 + i, i % size, *(MPI_Comm *)communicator, rank);
    return NULL;
}

static void threads(void)
{
    pthread_t thread[THREADS];
    MPI_Comm own[THREADS];
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &own[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, in_thread, &own[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_free(&own[i]);
}

/* An invalid root is reported by the library, through the communicator's error handler. */
static void wrong_root(void)
{
    int value = 0, class = MPI_SUCCESS;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int status = MPI_Bcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD);
    MPI_Error_class(status, &class);
    expect(class == MPI_ERR_ROOT, "a root out of range is not refused");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

static void two_groups(void)
{
    MPI_Comm half, both;
    int first = rank == 0, value[1000] = {rank == 0 ? 5 : 0};
    MPI_Comm_split(MPI_COMM_WORLD, first, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, first ? 1 : 0, 1, &both);
    MPI_Bcast(value, 1000, MPI_INT, first ? MPI_ROOT : 0, both);
    expect(value[0] == 5, "wrong data between two groups");
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
}

/*
 * The root receives large messages before it broadcasts. The other ranks are already waiting in the
 * broadcast, which must progress their sends.
 */
static void progress(void)
{
    enum { MANY = 1 << 20 };
    static int from[MANY], to[MANY];
    int root = 0, value[1000] = {rank == root ? 9 : 0};
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == root)
        for (int i = 1; i < size; i++)
            MPI_Recv(to, MANY, MPI_INT, i, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Isend(from, MANY, MPI_INT, root, 3, MPI_COMM_WORLD, &request);
    MPI_Bcast(value, 1000, MPI_INT, root, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(value[0] == 9, "wrong data");
}

int main(int argc, char **argv)
{
    int provided, all, under_way = 0;
    MPI_Request request;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    /* A non-blocking collective is in flight when hvscale first uses the communicator. */
    MPI_Ibcast(&under_way, 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
    for (int root = 0; root < size; root++)
        for (int bytes = 0; bytes <= 1000000; bytes = bytes * 10 + 1)
            broadcast(bytes, root, MPI_COMM_WORLD, rank);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    broadcast(3000, 0, MPI_COMM_SELF, 0);
    wrong_root();
    two_groups();
    progress();
    if (provided == MPI_THREAD_MULTIPLE)
        threads();
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d failures\n", all);
    MPI_Finalize();
    return all != 0;
}
