/* The operations that a profile file may hold, by code. */
#ifndef HVPROF_OPERATIONS_H
#define HVPROF_OPERATIONS_H

#include "format.h"

#define NON_BLOCKING 32 /* a non-blocking call's code is the blocking one's plus this */

/* By code; NULL for an unused code. */
extern const char *const operation_names[HVPROF_OPERATIONS];

#endif
