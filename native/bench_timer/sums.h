/* Sums of numbers that MPI has no type for, as it wants user-defined operations: 16 bits each, rounded to the nearest, ties to even. */
#ifndef HVBENCH_SUMS_H
#define HVBENCH_SUMS_H

/* MPI_User_function: other[i] += own[i] for *length elements. The type's handle is not looked at: it may be an int or an address. */
__attribute__((visibility("default"))) void hvbench_sum_float16(const void *own, void *other, const int *length, void *type);
__attribute__((visibility("default"))) void hvbench_sum_bfloat16(const void *own, void *other, const int *length, void *type);

/* Has both use one of "avx512fp16", "avx512", "avx2", "plain", or the best of the processor's for "best". -1 where it has no such instructions. */
__attribute__((visibility("default"))) int hvbench_choose_sums(const char *instructions);

#endif
