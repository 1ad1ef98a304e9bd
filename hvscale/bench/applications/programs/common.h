/* Shared by all programs: parameters, timing, and hashes that do not depend on the decomposition. */
#ifndef HVSCALE_COMMON_H
#define HVSCALE_COMMON_H

#include <stddef.h>
#include <stdint.h>

/* The value of the argument `name=value`. Aborts the job if it is missing or below `minimum`. */
long long read_parameter(int argc, char **argv, const char *name, long long minimum);

/* Prints the problem and aborts the job unless `condition` is true. */
void require(int condition, const char *program, const char *problem);

/* Zeroed memory of `count` times `size` bytes. Aborts the job if there is not enough. */
void *allocate(size_t count, size_t size);

/* The time in seconds after a barrier over all ranks. */
double start_timer(void);

/* The seconds since `start` on the slowest rank; valid on rank 0. */
double slowest_seconds(double start);

/* The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): flipping one input bit flips about half of the
 * output bits. */
uint64_t mix(uint64_t bits);

/* A pseudo-random number in [0, 1) for each index. */
double random_at(uint64_t index);

uint64_t bits_of(double value);

#endif
