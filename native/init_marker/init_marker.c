/*
 * Preloaded into every rank: creates files in the run folder which show that MPI_Init has begun,
 * that it has succeeded, and which MPI library the program uses.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/log.h"
#include "mpi_abi/init_chain.h"

/*
 * Twice MPICH's MPI_MAX_LIBRARY_VERSION_STRING, the largest known, in case a library writes past
 * its own limit.
 */
enum { VERSION_BYTES = 2 * 8192 };

const char log_name[] = "hvscale";

/* $HVSCALE_INIT_MARKER is the path of the rank's files without their extension. */
static bool marker_path(char path[PATH_MAX], const char *extension)
{
    const char *stem = getenv("HVSCALE_INIT_MARKER");
    return stem != NULL && snprintf(path, PATH_MAX, "%s.%s", stem, extension) < PATH_MAX;
}

/* On failure the rank continues, and the launcher assumes that it is late. */
static void create_marker(const char *extension)
{
    char path[PATH_MAX];
    if (!marker_path(path, extension))
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

/* A write beyond the limit on file sizes would kill the rank. */
static bool may_write(size_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= bytes;
}

/*
 * Writes a file with the path of the library and, below it, the library's version text. A rank may
 * start several programs. The file name is a hash of the content, so each library is reported once.
 * The file is renamed into place because the launcher may read it at any moment.
 */
static void write_report(const char *library_file, const char *version)
{
    char extension[64], path[PATH_MAX], temporary[PATH_MAX];
    uint64_t content = hash(hash(UINT64_C(0xcbf29ce484222325), library_file), version);
    snprintf(extension, sizeof extension, "library-%016" PRIx64, content);
    size_t bytes = strlen(library_file) + 1 + strlen(version);
    if (!marker_path(path, extension) || access(path, F_OK) == 0 || !may_write(bytes))
        return;
    snprintf(extension, sizeof extension, "writing-%ld", (long)getpid());
    if (!marker_path(temporary, extension))
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
    fn_ptr entry = mpi_find("PMPI_Get_library_version", caller);
    void *address;
    memcpy(&address, &entry, sizeof address);
    Dl_info object;
    if (entry == NULL || dladdr(address, &object) == 0 || object.dli_fname == NULL)
        return;
    static char version[VERSION_BYTES];
    int length = 0;
    if (((int (*)(char *, int *))entry)(version, &length) != 0)
        return;
    version[sizeof version - 1] = '\0';
    char file[PATH_MAX];
    write_report(realpath(object.dli_fname, file) != NULL ? file : object.dli_fname, version);
}

static void mark_init_begun(const void *caller)
{
    (void)caller;
    create_marker("init-begun");
}

static void mark_init_done(const void *caller)
{
    create_marker("init-done");
    report_library(caller);
}

const struct init_hooks init_hooks = {.before = mark_init_begun, .after = mark_init_done};
