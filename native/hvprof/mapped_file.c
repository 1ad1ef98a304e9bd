#include "mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_space.h"

#define MIB ((uint64_t)1 << 20)
#define DEFAULT_MIB 64

void mapped_file_say(const struct mapped_file_kind *kind, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(line, sizeof line, "%s: ", kind->speaker);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    /* One write, so that the lines of many ranks do not mix. */
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}

uint64_t mapped_file_ring_bytes(const struct mapped_file_kind *kind)
{
    const char *text = getenv("HVPROF_MIB");
    uint64_t mebibytes = DEFAULT_MIB;
    if (text != NULL && *text != '\0') {
        char *end;
        errno = 0;
        long long value = strtoll(text, &end, 10);
        if (errno == 0 && *end == '\0' && value >= 1 && value <= 1 << 20)
            mebibytes = (uint64_t)value;
        else
            mapped_file_say(kind, "HVPROF_MIB=%s is not a number of MiB from 1 to 1048576: taking %d", text, DEFAULT_MIB);
    }
    return mebibytes * MIB;
}

/* The first process of a rank gets rank-00003.hvp; whoever comes after it never shares or replaces that file. */
static bool publish(const struct mapped_file_kind *kind, const char *temporary, const char *directory, uint32_t rank)
{
    char path[4096];
    for (int attempt = 0; attempt < 100; attempt++) {
        char suffix[48] = "";
        if (attempt > 0)
            snprintf(suffix, sizeof suffix, ".%d", (int)getpid());
        if (attempt > 1)
            snprintf(suffix, sizeof suffix, ".%d-%d", (int)getpid(), attempt);
        if ((size_t)snprintf(path, sizeof path, "%s/%s-%05u%s.%s", directory, kind->prefix, rank, suffix, kind->extension) >=
            sizeof path) {
            errno = ENAMETOOLONG;
            return false;
        }
        if (link(temporary, path) == 0)
            return true;
        if (errno != EEXIST)
            return false;
    }
    return false;
}

static void *map(int file, uint64_t size)
{
    /* Space is taken now: writing to a mapped page of a full disk later would kill the job with SIGBUS. */
    errno = file_space_reserve(file, size);
    if (errno != 0)
        return NULL;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, size, MADV_DONTFORK);
    return memory;
}

void *mapped_file_make(const struct mapped_file_kind *kind, uint32_t rank, uint64_t size,
                       void (*describe)(void *file, const void *identity), const void *identity)
{
    const char *directory = getenv("HVPROF_DIRECTORY");
    if (directory == NULL || *directory == '\0') {
        mapped_file_say(kind, "HVPROF_DIRECTORY is not set: the job goes on without a profile");
        return NULL;
    }
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s/.%s-%05u.XXXXXX", directory, kind->prefix, rank) >= sizeof temporary) {
        mapped_file_say(kind, "HVPROF_DIRECTORY is too long a path: the job goes on without a profile");
        return NULL;
    }
    int file = mkostemp(temporary, O_CLOEXEC);
    if (file < 0) {
        mapped_file_say(kind, "cannot write in %s (%s): the job goes on without a profile", directory, strerror(errno));
        return NULL;
    }
    void *memory = map(file, size);
    bool ready = memory != NULL;
    if (ready) {
        describe(memory, identity);
        fchmod(file, 0644);
        /* Held, with the open file, for as long as this process lives: nobody cuts the file under it. */
        flock(file, LOCK_SH | LOCK_NB);
        ready = publish(kind, temporary, directory, rank);
    }
    if (!ready) {
        mapped_file_say(kind, "cannot make a profile of %llu MiB in %s (%s): the job goes on without one",
                        (unsigned long long)(size / MIB), directory, strerror(errno));
        if (memory != NULL)
            munmap(memory, size);
        close(file);
    }
    unlink(temporary);
    return ready ? memory : NULL;
}
