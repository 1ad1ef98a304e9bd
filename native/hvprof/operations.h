#ifndef HVPROF_OPERATIONS_H
#define HVPROF_OPERATIONS_H

#include "format.h"

#define NON_BLOCKING 32 /* the code of a non-blocking call, less that of the blocking one */

/* By code; NULL where a code names nothing. */
extern const char *const operation_names[HVPROF_OPERATIONS];

#endif
