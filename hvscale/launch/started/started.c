/* Preloaded into a rank: tells the launcher, by two empty files, that the program has called MPI_Init and that it has come through. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "library.h"

#define EXPORTED __attribute__((visibility("default")))

typedef int (*init_function)(int *, char ***);
typedef int (*init_thread_function)(int *, char ***, int, int *);

/* HVSCALE_STARTED is the rank's path without an ending. A rank that cannot write is not hindered: it only counts as late. */
static void leave_a_file(const char *ending)
{
    const char *stem = getenv("HVSCALE_STARTED");
    char path[PATH_MAX];
    if (stem == NULL || snprintf(path, sizeof path, "%s.%s", stem, ending) >= (int)sizeof path)
        return;
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file >= 0)
        close(file);
}

static function next_function(const char *name, const void *caller)
{
    function next = library_next(name, caller);
    if (next == NULL) {
        fprintf(stderr, "hvscale: %s is in no library of this process\n", name);
        abort();
    }
    return next;
}

EXPORTED int MPI_Init(int *argc, char ***argv)
{
    function next = next_function("MPI_Init", __builtin_return_address(0));
    leave_a_file("entered");
    int status = ((init_function)next)(argc, argv);
    if (status == 0)
        leave_a_file("started");
    return status;
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    function next = next_function("MPI_Init_thread", __builtin_return_address(0));
    leave_a_file("entered");
    int status = ((init_thread_function)next)(argc, argv, required, provided);
    if (status == 0)
        leave_a_file("started");
    return status;
}
