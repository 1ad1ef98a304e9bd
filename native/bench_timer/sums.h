/*
 * Sums of 16-bit floating-point numbers, which MPI has no type for: rounded to nearest, ties to
 * even.
 */
#ifndef HVBENCH_SUMS_H
#define HVBENCH_SUMS_H

/*
 * MPI_User_function: other[i] += own[i] for *length elements. `type` is ignored: its form depends
 * on the ABI.
 */
__attribute__((visibility("default"))) void hvbench_sum_float16(const void *own, void *other, const int *length, void *type);
__attribute__((visibility("default"))) void hvbench_sum_bfloat16(const void *own, void *other, const int *length, void *type);

/*
 * Selects the instructions that both use: "avx512fp16", "avx512", "avx2" or "plain", or "best" for
 * the best that the processor has. Returns -1 if it lacks them.
 */
__attribute__((visibility("default"))) int hvbench_choose_sums(const char *instructions);

#endif
