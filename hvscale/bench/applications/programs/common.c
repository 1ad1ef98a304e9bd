#include "common.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void give_up(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

void require(int fine, const char *what, const char *why)
{
    if (!fine)
        give_up(what, why);
}

long long parameter(int argc, char **argv, const char *name, long long least)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, length) != 0 || argv[i][length] != '=')
            continue;
        char *end;
        long long value = strtoll(argv[i] + length + 1, &end, 10);
        if (*end != '\0' || end == argv[i] + length + 1 || value < least)
            give_up(argv[i], "not a number that this parameter can be");
        return value;
    }
    give_up(name, "missing, write it as name=value");
    return 0;
}

void *memory(size_t count, size_t size)
{
    void *got = calloc(count > 0 ? count : 1, size);
    if (got == NULL) {
        char bytes[64];
        snprintf(bytes, sizeof bytes, "%zu times %zu bytes", count, size);
        give_up(bytes, "not to be had, choose a smaller size");
    }
    return got;
}

double start_together(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime();
}

double slowest_since(double start)
{
    double own = MPI_Wtime() - start, most = 0;
    MPI_Reduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return most;
}

uint64_t mixed(uint64_t bits)
{
    bits += UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
    return bits ^ (bits >> 31);
}

double random_at(uint64_t index)
{
    return (double)(mixed(index) >> 11) * 0x1p-53;
}

uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
