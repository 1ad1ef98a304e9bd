/* What the programs share: their parameters, their clock, and hashes that do not depend on how the work is divided. */
#ifndef HVSCALE_COMMON_H
#define HVSCALE_COMMON_H

#include <stddef.h>
#include <stdint.h>

/* The value of the argument `name=value`, which every parameter has; ends the job when it is missing or below `least`. */
long long parameter(int argc, char **argv, const char *name, long long least);

/* Ends the job, saying why, unless `fine`. */
void require(int fine, const char *what, const char *why);

/* `count` times `size` bytes; ends the job, saying so, when they are not to be had. */
void *memory(size_t count, size_t size);

/* The time now once every rank has come here, seconds. */
double start_together(void);

/* The seconds since `start` of the rank that needed most; known to rank 0. */
double slowest_since(double start);

/* The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): any change of a bit changes half of the result. */
uint64_t mixed(uint64_t bits);

/* A number in [0, 1) for every index. */
double random_at(uint64_t index);

uint64_t bits_of(double value);

#endif
