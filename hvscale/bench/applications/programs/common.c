#include "common.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, const char *problem)
{
    fprintf(stderr, "%s: %s\n", what, problem);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

void require(int condition, const char *program, const char *problem)
{
    if (!condition)
        fail(program, problem);
}

long long read_parameter(int argc, char **argv, const char *name, long long minimum)
{
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, length) != 0 || argv[i][length] != '=')
            continue;
        char *end;
        long long value = strtoll(argv[i] + length + 1, &end, 10);
        if (*end != '\0' || end == argv[i] + length + 1 || value < minimum)
            fail(argv[i], "invalid value");
        return value;
    }
    fail(name, "missing parameter, give it as name=value");
    return 0;
}

void *allocate(size_t count, size_t size)
{
    void *address = calloc(count > 0 ? count : 1, size);
    if (address == NULL) {
        char bytes[64];
        snprintf(bytes, sizeof bytes, "%zu times %zu bytes", count, size);
        fail(bytes, "out of memory, choose a smaller size");
    }
    return address;
}

double start_timer(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime();
}

double slowest_seconds(double start)
{
    double own = MPI_Wtime() - start, most = 0;
    MPI_Reduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return most;
}

uint64_t mix(uint64_t bits)
{
    bits += UINT64_C(0x9e3779b97f4a7c15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
    return bits ^ (bits >> 31);
}

double random_at(uint64_t index)
{
    return (double)(mix(index) >> 11) * 0x1p-53;
}

uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
