#ifndef HVPROF_COLLECTIVES_H
#define HVPROF_COLLECTIVES_H

#include "format.h"

/* By code; NULL where a code names nothing. */
extern const char *const operation_names[HVPROF_OPERATIONS];

#endif
