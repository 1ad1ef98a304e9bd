/* Times calls of functions that are known by address alone, without a header of theirs and without Python in between. */
#ifndef HVBENCH_TIMED_H
#define HVBENCH_TIMED_H

#include <stdint.h>

/* An argument as it stands in its register or stack slot: an int handle of MPICH's, an address of Open MPI's, a count. */
typedef uintptr_t word;

enum { MOST_ARGUMENTS = 9 };

struct call {
    word function; /* that answers an int, 0 for success */
    word arity;
    word arguments[MOST_ARGUMENTS];
};

/* `samples` times: meet, then `repeats` times all of `calls` in their order; `seconds` gets what one time of them took in each sample.
   `apart`: meet before every time, and leave the meeting out. The first answer other than 0 ends it and is given back. */
__attribute__((visibility("default"))) int hvbench_time(const struct call *calls, int number, const struct call *meet, int samples, int repeats,
                                                        int apart, double *seconds);

#endif
