/* The rank's own record in the run folder: when and where its command started and ended. */
#ifndef HVSCALE_RANK_STATE_H
#define HVSCALE_RANK_STATE_H

#include <stdbool.h>
#include <sys/types.h>

/* Times are seconds since 1970; 0: not yet. */
struct rank_state {
    const char *run;
    int rank;
    pid_t pid;
    bool has_devices; /* write the variables that select GPUs, and how many the driver offers */
    const char *library_variable; /* NULL: none */
    int devices_offered;
    double started_at, ended_at, last_output_at;
    bool killed_by_launcher;
    int exit_status, signal; /* once it has ended; signal 0: none */
};

/*
 * Writes RUN/ranks/rank-NNNNN.json under a temporary name and renames it, because the controller
 * may read it at any time. A full disk must not end the job, so errors are ignored.
 */
void rank_state_write(const struct rank_state *state);

double seconds_since_1970(void);

#endif
