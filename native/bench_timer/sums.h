/*
 * Sums of 16-bit floating-point numbers, for which MPI has no type. Rounds to nearest, ties to
 * even.
 */
#ifndef HVBENCH_SUMS_H
#define HVBENCH_SUMS_H

#include "mpi_abi/mpi_abi.h"

/*
 * MPI_User_function: other[i] += own[i] for *length elements. Ignores `type`, whose form depends on
 * the ABI.
 */
EXPORTED void hvbench_sum_float16(const void *own, void *other, const int *length, void *type);
EXPORTED void hvbench_sum_bfloat16(const void *own, void *other, const int *length, void *type);

/*
 * Selects the instructions for both: "avx512fp16", "avx512", "avx2", "plain", or "best" for the
 * fastest that the processor has. Returns -1 if the processor lacks them.
 */
EXPORTED int hvbench_choose_sums(const char *instructions);

#endif
