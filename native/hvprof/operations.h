/* The operations that a profile file may hold, by code. */
#ifndef HVPROF_OPERATIONS_H
#define HVPROF_OPERATIONS_H

#include "format.h"

#define NON_BLOCKING 32 /* added to the code of the blocking call */

/* By code; NULL for an unused code. */
extern const char *const operation_names[HVPROF_OPERATIONS];

#endif
