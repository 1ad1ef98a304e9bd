/* The GPUs of a rank. */
#ifndef HVSCALE_DEVICES_H
#define HVSCALE_DEVICES_H

#include <stdbool.h>

#define VISIBLE_DEVICES "CUDA_VISIBLE_DEVICES"

/*
 * The number of NVIDIA GPUs that this process could open, counted by their device files: a
 * container may have only some of them.
 */
int devices_offered(void);

/*
 * Sets the variables that select this rank's GPUs by the policy of --devices. Returns false, with
 * the reason in `problem`, if the node has GPUs but none for this rank.
 */
bool devices_select(const char *policy, const char *library_variable, int offered, int local_rank, char problem[512]);

#endif
