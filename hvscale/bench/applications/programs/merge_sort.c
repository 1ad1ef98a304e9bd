/* Divide and conquer: sorts samples of 1/(1+x), x in [100, 200], which are on rank 0. Down a balanced binary tree each
 * rank sends half of its samples to another rank, until all ranks have a share to sort. Up the tree the halves are
 * merged. np is a power of two.
 * Usage: merge_sort samples=N */
#include "common.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOWN = 1, UP = 2, SHORT_RUN = 32 };

/* The most elements in one MPI call, whose count is an int. */
static const size_t MAX_COUNT = (size_t)1 << 27;

static void send(const double *values, size_t count, int to, int tag)
{
    for (size_t sent = 0; sent < count; sent += MAX_COUNT)
        MPI_Send(values + sent, (int)(count - sent < MAX_COUNT ? count - sent : MAX_COUNT), MPI_DOUBLE, to, tag, MPI_COMM_WORLD);
}

static void receive(double *values, size_t count, int from, int tag)
{
    for (size_t got = 0; got < count; got += MAX_COUNT)
        MPI_Recv(
            values + got, (int)(count - got < MAX_COUNT ? count - got : MAX_COUNT), MPI_DOUBLE, from, tag, MPI_COMM_WORLD,
            MPI_STATUS_IGNORE
        );
}

/* Merges the sorted halves of `values` that meet at `middle`. `scratch` holds a copy of the first half. */
static void merge(double *values, size_t middle, size_t count, double *scratch)
{
    memcpy(scratch, values, middle * sizeof *values);
    size_t left = 0, right = middle;
    for (size_t to = 0; left < middle; to++)
        values[to] = right < count && values[right] < scratch[left] ? values[right++] : scratch[left++];
}

static void sort(double *values, size_t count, double *scratch)
{
    if (count <= SHORT_RUN) {
        for (size_t i = 1; i < count; i++) {
            double moved = values[i];
            size_t to = i;
            for (; to > 0 && moved < values[to - 1]; to--)
                values[to] = values[to - 1];
            values[to] = moved;
        }
        return;
    }
    size_t middle = count / 2;
    sort(values, middle, scratch);
    sort(values + middle, count - middle, scratch);
    merge(values, middle, count, scratch);
}

/* Sorts the values of this rank together with the next `span` - 1 ranks. */
static void parallel_sort(double *values, size_t count, double *scratch, int rank, int span)
{
    if (span == 1) {
        sort(values, count, scratch);
        return;
    }
    size_t middle = count / 2;
    int helper = rank + span / 2;
    uint64_t given = count - middle;
    MPI_Send(&given, 1, MPI_UINT64_T, helper, DOWN, MPI_COMM_WORLD);
    send(values + middle, count - middle, helper, DOWN);
    parallel_sort(values, middle, scratch, rank, span / 2);
    receive(values + middle, count - middle, helper, UP);
    merge(values, middle, count, scratch);
}

/* On every rank but 0: receives samples from its parent, sorts them and sends them back. The lowest set bit of a rank
 * is the number of ranks in its subtree. */
static void run_helper(int rank)
{
    int span = rank & -rank, parent = rank - span;
    uint64_t given;
    MPI_Recv(&given, 1, MPI_UINT64_T, parent, DOWN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    size_t count = (size_t)given;
    double *values = allocate(count, sizeof *values), *scratch = allocate(count / 2, sizeof *scratch);
    receive(values, count, parent, DOWN);
    parallel_sort(values, count, scratch, rank, span);
    send(values, count, parent, UP);
    free(values);
    free(scratch);
}

/* A checksum that does not depend on the order of the samples. */
static uint64_t checksum(const double *values, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += mix(bits_of(values[i]));
    return sum;
}

static int is_sorted(const double *values, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (values[i] < values[i - 1])
            return 0;
    return 1;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    size_t count = (size_t)read_parameter(argc, argv, "samples", 1);
    int rank, np;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    require((np & (np - 1)) == 0, "merge_sort", "np must be a power of two");
    double *values = NULL, *scratch = NULL;
    uint64_t before = 0;
    if (rank == 0) {
        values = allocate(count, sizeof *values);
        scratch = allocate(count / 2, sizeof *scratch);
        for (size_t i = 0; i < count; i++)
            values[i] = 1 / (1 + 100 + 100 * random_at(i));
        before = checksum(values, count);
    }
    double start = start_timer();
    if (rank == 0)
        parallel_sort(values, count, scratch, rank, np);
    else
        run_helper(rank);
    double seconds = slowest_seconds(start);
    if (rank == 0)
        printf(
            "{\"seconds\": %.9f, \"sorted\": %s, \"checksum_before\": \"%016" PRIx64 "\", \"checksum_after\": \"%016" PRIx64 "\"}\n",
            seconds, is_sorted(values, count) ? "true" : "false", before, checksum(values, count)
        );
    free(values);
    free(scratch);
    MPI_Finalize();
    return 0;
}
