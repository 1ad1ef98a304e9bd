/*
 * Messages of more bytes than an int can count: many elements of one type, and a type with holes of
 * which a single element is that large.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int (*broadcast_function)(void *, int64_t, uintptr_t, int, uintptr_t, const char *, uint64_t, int, int);

#define BLOCK ((size_t)1 << 20)
#define BLOCKS ((size_t)2200)

static broadcast_function broadcast;
static int rank, failures;

/*
 * All blocks but the last share the same memory, to save memory. Data written to a wrong place is
 * missing in the last block.
 */
static char *make_memory(size_t stride)
{
    char *memory = mmap(NULL, BLOCKS * stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int file = memfd_create("block", 0);
    if (memory == MAP_FAILED || file < 0 || ftruncate(file, (off_t)stride) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = 0; i + 1 < BLOCKS; i++)
        if (mmap(memory + i * stride, stride, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
            MPI_Abort(MPI_COMM_WORLD, 1);
    return memory;
}

static int holds(const char *at, size_t bytes, int value)
{
    return *at == (char)value && memcmp(at, at + 1, bytes - 1) == 0;
}

static void check(size_t stride, MPI_Datatype type, const char *what)
{
    char *memory = make_memory(stride), *last = memory + (BLOCKS - 1) * stride;
    memset(memory, rank == 0 ? 1 : 3, stride);
    memset(last, rank == 0 ? 2 : 3, stride);
    MPI_Type_commit(&type);
    int right = broadcast(memory, 1, (uintptr_t)type, 0, (uintptr_t)MPI_COMM_WORLD, "chain", 1 << 20, 4, 2) == 0 &&
        holds(memory, BLOCK, 1) && holds(last, BLOCK, 2);
    if (stride > BLOCK)
        right = right && holds(last + BLOCK, stride - BLOCK, rank == 0 ? 2 : 3);
    if (!right)
        fprintf(stderr, "rank %d: wrong: %s\n", rank, what);
    failures += !right;
    MPI_Type_free(&type);
    munmap(memory, BLOCKS * stride);
}

int main(int argc, char **argv)
{
    const size_t stride = BLOCK + 4096;
    MPI_Datatype block, repeated, holes;
    int all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    void *address = dlsym(RTLD_DEFAULT, "hvbcast_broadcast");
    if (address == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memcpy(&broadcast, &address, sizeof broadcast);
    MPI_Type_contiguous((int)BLOCK, MPI_CHAR, &block);
    MPI_Type_contiguous((int)BLOCKS, block, &repeated);
    check(BLOCK, repeated, "a type that repeats another");
    MPI_Type_create_hvector((int)BLOCKS, 1, (MPI_Aint)stride, block, &holes);
    check(stride, holes, "a type with holes");
    MPI_Type_free(&block);
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d failures\n", all);
    MPI_Finalize();
    return all != 0;
}
