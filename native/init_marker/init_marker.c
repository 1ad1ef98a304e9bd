/* Preloaded into a rank: leaves files in the run folder that say that the program has called MPI_Init, that it has come through,
 * and which MPI library it runs on. */
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "library.h"

#define EXPORTED __attribute__((visibility("default")))

/* MPICH's MPI_MAX_LIBRARY_VERSION_STRING, the largest known, and as much again for a library that writes past its own. */
enum { VERSION_BYTES = 2 * 8192 };

typedef int (*init_function)(int *, char ***);
typedef int (*init_thread_function)(int *, char ***, int, int *);
typedef int (*version_function)(char *, int *);

static const void *program; /* what has called MPI_Init, while it is in there */

EXPORTED const void *hvscale_init_caller(void);
const void *hvscale_init_caller(void)
{
    return program;
}

/* HVSCALE_INIT_MARKER is the rank's path without an ending. */
static bool with_ending(char path[PATH_MAX], const char *ending)
{
    const char *stem = getenv("HVSCALE_INIT_MARKER");
    return stem != NULL && snprintf(path, PATH_MAX, "%s.%s", stem, ending) < PATH_MAX;
}

/* A rank that cannot write is not hindered: it only counts as late. */
static void leave_a_file(const char *ending)
{
    char path[PATH_MAX];
    if (!with_ending(path, ending))
        return;
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file >= 0)
        close(file);
}

/* FNV-1a */
static uint64_t hash(uint64_t value, const char *text)
{
    for (; *text != '\0'; text++)
        value = (value ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return value;
}

/* Writing past the limit on a file's size would kill the rank. */
static bool may_write(size_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

/* The library's file and, below it, what the library says of itself. One file for each library that the rank's programs start, named after both:
 * the same one again writes nothing. Renamed into place, because the launcher may read at any moment. */
static void leave_a_report(const char *library_file, const char *version)
{
    char ending[64], path[PATH_MAX], temporary[PATH_MAX];
    snprintf(ending, sizeof ending, "library-%016" PRIx64, hash(hash(UINT64_C(0xcbf29ce484222325), library_file), version));
    size_t bytes = strlen(library_file) + 1 + strlen(version);
    if (!with_ending(path, ending) || access(path, F_OK) == 0 || !may_write(bytes))
        return;
    snprintf(ending, sizeof ending, "writing-%ld", (long)getpid());
    if (!with_ending(temporary, ending))
        return;
    int file = open(temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    bool written = dprintf(file, "%s\n%s", library_file, version) == (int)bytes;
    if (close(file) != 0 || !written || rename(temporary, path) != 0)
        unlink(temporary);
}

static void report_library(const void *caller)
{
    function entry = library_find("PMPI_Get_library_version", caller);
    void *address;
    memcpy(&address, &entry, sizeof address);
    Dl_info object;
    if (entry == NULL || dladdr(address, &object) == 0 || object.dli_fname == NULL)
        return;
    static char version[VERSION_BYTES];
    int length = 0;
    if (((version_function)entry)(version, &length) != 0)
        return;
    version[sizeof version - 1] = '\0';
    char file[PATH_MAX];
    leave_a_report(realpath(object.dli_fname, file) != NULL ? file : object.dli_fname, version);
}

static function begin(const char *name, const void *caller)
{
    function next = library_next(name, caller);
    if (next == NULL) {
        fprintf(stderr, "hvscale: %s is in no library of this process\n", name);
        abort();
    }
    leave_a_file("entered");
    program = caller;
    return next;
}

static int end(int status, const void *caller)
{
    program = NULL;
    if (status == 0) {
        leave_a_file("started");
        report_library(caller);
    }
    return status;
}

EXPORTED int MPI_Init(int *argc, char ***argv)
{
    const void *caller = __builtin_return_address(0);
    function next = begin("MPI_Init", caller);
    return end(((init_function)next)(argc, argv), caller);
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const void *caller = __builtin_return_address(0);
    function next = begin("MPI_Init_thread", caller);
    return end(((init_thread_function)next)(argc, argv, required, provided), caller);
}
