/*
 * Preloaded into every rank: lets Horovod's synchronize() sleep while it waits. It polls, and calls
 * sched_yield() in between, which keeps a core busy that other threads of the ranks may need.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "init_marker/object_name.h"

#define EXPORTED __attribute__((visibility("default")))

/* Zero: no pause. */
static struct timespec pause_between_polls;

__attribute__((constructor)) static void read_setting(void)
{
    const char *microseconds = getenv("HVSCALE_WAIT_MICROSECONDS");
    long number = microseconds == NULL ? 0 : strtol(microseconds, NULL, 10);
    if (number > 0 && number < 1000 * 1000)
        pause_between_polls.tv_nsec = 1000 * number;
}

/* Its object is mpi_lib_v2.*.so for PyTorch, mpi_lib.*.so for TensorFlow. */
static bool belongs_to_horovod(const void *code)
{
    static _Thread_local const void *known;
    static _Thread_local bool belongs;
    if (code != known) {
        known = code;
        belongs = object_name_begins(code, "mpi_lib");
    }
    return belongs;
}

EXPORTED int sched_yield(void)
{
    if (pause_between_polls.tv_nsec == 0 || !belongs_to_horovod(__builtin_return_address(0)))
        return (int)syscall(SYS_sched_yield);
    nanosleep(&pause_between_polls, NULL);
    return 0;
}
