/*
 * Broadcasts with every algorithm, root, type, count, chunk and depth on several communicators,
 * while other messages of the program are in flight.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*broadcast_function)(void *, int64_t, uintptr_t, int, uintptr_t, const char *, uint64_t, int, int);

enum { MOST = 300, MOST_BYTES = 64 * MOST };

static broadcast_function broadcast;
static int failures, calls;

static void fail(const char *what, const char *algorithm, int root, int type, int count)
{
    if (failures++ < 10)
        fprintf(stderr, "%s: %s, root %d, type %d, count %d\n", what, algorithm, root, type, count);
}

struct mixed {
    char letter;
    double number;
    short small;
};

enum { TYPES = 8 };

/* Each type either has the same signature as its plain type, or all ranks use the same type. */
static void make_types(MPI_Datatype types[TYPES], MPI_Datatype plain[TYPES], int per_element[TYPES])
{
    MPI_Datatype resized;
    types[0] = plain[0] = MPI_INT;
    per_element[0] = 1;
    MPI_Type_contiguous(3, MPI_INT, &types[1]);
    types[2] = MPI_DATATYPE_NULL;
    MPI_Type_vector(2, 2, 5, MPI_INT, &types[2]);
    int lengths[] = {1, 1, 1};
    MPI_Aint places[] = {offsetof(struct mixed, small), offsetof(struct mixed, number), offsetof(struct mixed, letter)};
    MPI_Datatype members[] = {MPI_SHORT, MPI_DOUBLE, MPI_CHAR};
    MPI_Type_create_struct(3, lengths, places, members, &resized);
    MPI_Type_create_resized(resized, 0, sizeof(struct mixed), &types[3]);
    MPI_Type_free(&resized);
    int backwards[] = {2, 1, 0}, ones[] = {1, 1, 1};
    MPI_Type_indexed(3, ones, backwards, MPI_INT, &types[4]);
    types[5] = MPI_DOUBLE_INT;
    MPI_Type_dup(types[1], &types[6]);
    MPI_Type_contiguous(2, types[2], &types[7]);
    for (int i = 1; i < TYPES; i++) {
        if (i != 5)
            MPI_Type_commit(&types[i]);
        plain[i] = i == 3 || i == 5 ? types[i] : MPI_INT;
        per_element[i] = i == 3 || i == 5 ? 1 : i == 7 ? 8 : i == 2 ? 4 : 3;
    }
}

/* Compares hvscale's broadcast with the library's: equal data, including untouched holes. */
static void try(MPI_Comm communicator, const char *algorithm, int root, int t, MPI_Datatype type, MPI_Datatype plain, int per_element,
                int count, uint64_t chunk, int depth, int radix)
{
    static char buffer[MOST_BYTES], expected[MOST_BYTES];
    int rank, size, alike = rand();
    MPI_Comm_rank(communicator, &rank);
    MPI_Comm_size(communicator, &size);
    for (int i = 0; i < MOST_BYTES; i++)
        buffer[i] = expected[i] = (char)(i * 31 + rank * 7 + alike);
    /* Some ranks describe the same data with another type. */
    if (rank % 2 == 1 && rank != root) {
        type = plain;
        count *= per_element;
    }
    PMPI_Bcast(expected, count, type, root, communicator);
    /* In flight during the broadcast, on the same communicator; the receive matches any tag. */
    int sent[2] = {rank, calls}, got[2] = {-1, -1};
    MPI_Request requests[2];
    MPI_Irecv(got, 2, MPI_INT, (rank + size - 1) % size, MPI_ANY_TAG, communicator, &requests[0]);
    MPI_Isend(sent, 2, MPI_INT, (rank + 1) % size, 0, communicator, &requests[1]);
    int status = broadcast(buffer, count, (uintptr_t)type, root, (uintptr_t)communicator, algorithm, chunk, depth, radix);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    if (status != 0 && !(status == -1 && (count == 0 || size == 1)))
        fail("not done", algorithm, root, t, count);
    else if (status == 0 && memcmp(buffer, expected, MOST_BYTES) != 0)
        fail("wrong data", algorithm, root, t, count);
    if (got[0] != (rank + size - 1) % size || got[1] != calls)
        fail("a message of the program was taken", algorithm, root, t, count);
    calls++;
}

static void try_all(MPI_Comm communicator)
{
    static const char *const algorithms[] = {"flat", "chain", "k-nomial", "two-level"};
    static const struct {
        uint64_t chunk;
        int depth, radix;
    } ways[] = {{1 << 20, 1, 2}, {4096, 3, 3}, {999, 64, 2}, {1000, 1, 5}};
    static const int counts[] = {1, MOST};
    MPI_Datatype types[TYPES], plain[TYPES];
    int per_element[TYPES], size;
    MPI_Comm_size(communicator, &size);
    make_types(types, plain, per_element);
    for (int a = 0; a < 4; a++)
        for (int root = 0; root < size; root++)
            for (int t = 0; t < TYPES; t++)
                for (int c = 0; c < 2; c++)
                    for (int w = 0; w < 4; w++)
                        try(communicator, algorithms[a], root, t, types[t], plain[t], per_element[t], counts[c], ways[w].chunk,
                            ways[w].depth, ways[w].radix);
    /* Chunks of one byte, and an empty message. */
    for (int a = 0; a < 4; a++)
        for (int count = 0; count <= 17; count += 17)
            try(communicator, algorithms[a], size - 1, 4, types[4], plain[4], per_element[4], count, 1, 5, 2);
    for (int i = 1; i < TYPES; i++)
        if (i != 5)
            MPI_Type_free(&types[i]);
}

int main(int argc, char **argv)
{
    MPI_Comm backwards, alone;
    int rank, size, provided, all;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    void *address = dlsym(RTLD_DEFAULT, "hvbcast_broadcast");
    if (address == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memcpy(&broadcast, &address, sizeof broadcast);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    try_all(MPI_COMM_WORLD);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : 1, -rank, &backwards);
    try_all(backwards);
    MPI_Comm_free(&backwards);
    MPI_Comm_dup(MPI_COMM_SELF, &alone);
    try_all(alone);
    MPI_Comm_free(&alone);
    /* One broadcast on each of many communicators: leaked resources would accumulate. */
    for (int i = 0; i < 200; i++) {
        MPI_Comm one;
        int number = rank == i % size ? i : -1;
        MPI_Comm_dup(MPI_COMM_WORLD, &one);
        broadcast(&number, 1, (uintptr_t)MPI_INT, i % size, (uintptr_t)one, i % 2 ? "two-level" : "chain", 64, 2, 2);
        if (number != i)
            fail("wrong data on a new communicator", "", i % size, 0, 1);
        MPI_Comm_free(&one);
    }
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d broadcasts, %d wrong\n", calls, all);
    MPI_Finalize();
    return all != 0;
}
