/*
 * Runs as one rank: exercises each path of hvprof that allocates memory, and checks MPI's results.
 * Exits with 0 if every call succeeded that needs no memory from hvprof.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 40 }; /* more requests than hvprof keeps on the stack */

typedef int (*allgatherv_c)(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count *, const MPI_Aint *,
                            MPI_Datatype, MPI_Comm);
typedef int (*iallgatherv_c)(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count *, const MPI_Aint *,
                             MPI_Datatype, MPI_Comm, MPI_Request *);

static void expect(int succeeded, const char *what)
{
    if (succeeded)
        return;
    printf("wrong: %s\n", what);
    exit(1);
}

static void check_sum(MPI_Comm communicator, const char *what)
{
    int in = 7, out = 0;
    expect(MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, communicator) == MPI_SUCCESS && out == 7, what);
}

static void *in_a_thread(void *communicator)
{
    check_sum(*(MPI_Comm *)communicator, "sum in a thread");
    return NULL;
}

static void start_many(void)
{
    int in[MANY], out[MANY] = {0};
    MPI_Request requests[MANY];
    for (int i = 0; i < MANY; i++) {
        in[i] = i;
        int status = MPI_Iallreduce(&in[i], &out[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[i]);
        expect(status == MPI_SUCCESS, "start");
    }
    expect(MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE) == MPI_SUCCESS, "wait for all");
    expect(memcmp(in, out, sizeof in) == 0, "sums of many");
}

/* Open MPI lacks these functions; libhvprof-large-counts adds them. */
static void gather_with_large_counts(void)
{
    int in = 5, out = 0;
    MPI_Count counts[] = {1};
    MPI_Aint places[] = {0};
    MPI_Request request;
    allgatherv_c blocking = (allgatherv_c)dlsym(RTLD_DEFAULT, "MPI_Allgatherv_c");
    iallgatherv_c non_blocking = (iallgatherv_c)dlsym(RTLD_DEFAULT, "MPI_Iallgatherv_c");
    if (blocking == NULL)
        return;
    int status = blocking(&in, 1, MPI_INT, &out, counts, places, MPI_INT, MPI_COMM_WORLD);
    expect(status == MPI_SUCCESS && out == 5, "gather");
    status = non_blocking(&in, 1, MPI_INT, &out, counts, places, MPI_INT, MPI_COMM_WORLD, &request);
    expect(status == MPI_SUCCESS || status == MPI_ERR_NO_MEM, "start of a gather");
    if (status == MPI_SUCCESS)
        expect(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS, "end of a gather");
}

int main(int argc, char **argv)
{
    int provided;
    MPI_Comm copy, later_copy, part;
    MPI_Request request;
    pthread_t thread;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    check_sum(MPI_COMM_WORLD, "sum");
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    check_sum(copy, "sum in a copy");
    start_many();
    MPI_Comm_idup(copy, &later_copy, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    check_sum(later_copy, "sum in a later copy");
    MPI_Comm_split(MPI_COMM_WORLD, 1, 0, &part);
    check_sum(part, "sum in a part");
    pthread_create(&thread, NULL, in_a_thread, &copy);
    pthread_join(thread, NULL);
    gather_with_large_counts();
    MPI_Comm_free(&part);
    MPI_Comm_free(&later_copy);
    MPI_Comm_free(&copy);
    MPI_Finalize();
    puts("all right");
    return 0;
}
