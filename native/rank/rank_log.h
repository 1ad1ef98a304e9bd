/* The rank's log file. */
#ifndef HVSCALE_RANK_LOG_H
#define HVSCALE_RANK_LOG_H

#include <stddef.h>

/* Opens RUN/logs/rank-NNNNN.log. If that fails, output goes to stderr and the job continues. */
void rank_log_open(const char *run, int rank);

/* Turns to stderr, after one line, once the file cannot be written. */
void rank_log_write(const char *data, size_t bytes);

#endif
