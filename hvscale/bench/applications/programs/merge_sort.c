/* Divide and conquer: rank 0 has all samples of 1/(1+x), x in [100, 200]. Down a balanced binary tree a rank gives half of what it has to another one,
 * until all have a share, which they sort; up the tree the halves are merged. np is a power of two. merge_sort samples=N */
#include "common.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOWN = 1, UP = 2, SHORT = 32 };

/* What one MPI call carries at most: its count is an int. */
static const size_t PIECE = (size_t)1 << 27;

static void send(const double *values, size_t count, int to, int tag)
{
    for (size_t sent = 0; sent < count; sent += PIECE)
        MPI_Send(values + sent, (int)(count - sent < PIECE ? count - sent : PIECE), MPI_DOUBLE, to, tag, MPI_COMM_WORLD);
}

static void receive(double *values, size_t count, int from, int tag)
{
    for (size_t got = 0; got < count; got += PIECE)
        MPI_Recv(
            values + got, (int)(count - got < PIECE ? count - got : PIECE), MPI_DOUBLE, from, tag, MPI_COMM_WORLD,
            MPI_STATUS_IGNORE
        );
}

/* Merges the sorted halves of `values` that meet at `middle`, by way of `room` for the first of them. */
static void merge(double *values, size_t middle, size_t count, double *room)
{
    memcpy(room, values, middle * sizeof *values);
    size_t left = 0, right = middle;
    for (size_t to = 0; left < middle; to++)
        values[to] = right < count && values[right] < room[left] ? values[right++] : room[left++];
}

static void sort(double *values, size_t count, double *room)
{
    if (count <= SHORT) {
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
    sort(values, middle, room);
    sort(values + middle, count - middle, room);
    merge(values, middle, count, room);
}

/* Sorts what this rank holds, with the help of the `span` - 1 ranks behind it. */
static void solve(double *values, size_t count, double *room, int rank, int span)
{
    if (span == 1) {
        sort(values, count, room);
        return;
    }
    size_t middle = count / 2;
    int helper = rank + span / 2;
    uint64_t given = count - middle;
    MPI_Send(&given, 1, MPI_UINT64_T, helper, DOWN, MPI_COMM_WORLD);
    send(values + middle, count - middle, helper, DOWN);
    solve(values, middle, room, rank, span / 2);
    receive(values + middle, count - middle, helper, UP);
    merge(values, middle, count, room);
}

/* What every rank but the first does: sorts the samples that it is given and returns them. A rank's lowest bit is how many it leads, itself included. */
static void help(int rank)
{
    int span = rank & -rank, giver = rank - span;
    uint64_t given;
    MPI_Recv(&given, 1, MPI_UINT64_T, giver, DOWN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    size_t count = (size_t)given;
    double *values = memory(count, sizeof *values), *room = memory(count / 2, sizeof *room);
    receive(values, count, giver, DOWN);
    solve(values, count, room, rank, span);
    send(values, count, giver, UP);
    free(values);
    free(room);
}

/* The same for every order of the same samples. */
static uint64_t checksum(const double *values, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += mixed(bits_of(values[i]));
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
    size_t count = (size_t)parameter(argc, argv, "samples", 1);
    int rank, np;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    require((np & (np - 1)) == 0, "merge_sort", "np is no power of two");
    double *values = NULL, *room = NULL;
    uint64_t before = 0;
    if (rank == 0) {
        values = memory(count, sizeof *values);
        room = memory(count / 2, sizeof *room);
        for (size_t i = 0; i < count; i++)
            values[i] = 1 / (1 + 100 + 100 * random_at(i));
        before = checksum(values, count);
    }
    double start = start_together();
    if (rank == 0)
        solve(values, count, room, rank, np);
    else
        help(rank);
    double seconds = slowest_since(start);
    if (rank == 0)
        printf(
            "{\"seconds\": %.9f, \"sorted\": %s, \"checksum_before\": \"%016" PRIx64 "\", \"checksum_after\": \"%016" PRIx64 "\"}\n",
            seconds, is_sorted(values, count) ? "true" : "false", before, checksum(values, count)
        );
    free(values);
    free(room);
    MPI_Finalize();
    return 0;
}
