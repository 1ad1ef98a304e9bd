/* Creates profile files: reserves space, writes the header and locks the file before naming it. */
#include "mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_space.h"
#include "log.h"

#define MIB ((uint64_t)1 << 20)
#define DEFAULT_MIB 64

/*
 * The first access to a page makes the kernel prepare the pages after it too: megabytes, if the disk
 * reads so far ahead. That is wasted on tables that stay mostly empty and on the rings of short
 * jobs (2 to 12 ms for the first page of each), but makes the later pages of a long ring cheaper.
 */
#define PAGE_BY_PAGE (2 * MIB)

/* A program may close descriptors that it did not open, and the next file then gets the number. */
static struct {
    int descriptor;
    dev_t device;
    ino_t inode;
} own = {.descriptor = -1};

uint64_t mapped_file_ring_bytes(void)
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
            log_line("HVPROF_MIB=%s is not a number of MiB from 1 to 1048576: using the default, %d", text,
                     DEFAULT_MIB);
    }
    return mebibytes * MIB;
}

/* A rank's first process gets rank-00003.hvp; later ones get names with their process id. */
static bool name_file(const struct mapped_file_kind *kind, const char *temporary, const char *directory, uint32_t rank)
{
    char path[4096];
    for (int attempt = 0; attempt < 100; attempt++) {
        char suffix[48] = "";
        if (attempt > 0)
            snprintf(suffix, sizeof suffix, ".%d", (int)getpid());
        if (attempt > 1)
            snprintf(suffix, sizeof suffix, ".%d-%d", (int)getpid(), attempt);
        int length = snprintf(path, sizeof path, "%s/%s-%05u%s.%s", directory, kind->prefix, rank, suffix,
                              kind->extension);
        if ((size_t)length >= sizeof path) {
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

static void *map(int file, uint64_t size, const struct file_part *parts, size_t part_count)
{
    /* Reserved now: on a full disk, a later write to the mapping would kill the job with SIGBUS. */
    for (size_t i = 0; i < part_count; i++) {
        errno = file_space_reserve(file, parts[i].offset, parts[i].bytes);
        if (errno != 0)
            return NULL;
    }
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, size, MADV_DONTFORK);
    madvise(memory, size < PAGE_BY_PAGE ? size : PAGE_BY_PAGE, MADV_RANDOM);
    return memory;
}

static void remember(int file)
{
    struct stat about;
    if (fstat(file, &about) != 0)
        return;
    own.descriptor = file;
    own.device = about.st_dev;
    own.inode = about.st_ino;
}

bool mapped_file_reserve(struct file_part part)
{
    struct stat about;
    return fstat(own.descriptor, &about) == 0 && about.st_dev == own.device && about.st_ino == own.inode &&
        file_space_reserve(own.descriptor, part.offset, part.bytes) == 0;
}

void *mapped_file_create(const struct mapped_file_kind *kind, uint32_t rank, uint64_t size,
                         const struct file_part *parts, size_t part_count,
                         void (*write_header)(void *file, const void *identity), const void *identity)
{
    const char *directory = getenv("HVPROF_DIRECTORY");
    if (directory == NULL || *directory == '\0') {
        log_line("HVPROF_DIRECTORY is not set: the job continues without a profile");
        return NULL;
    }
    char temporary[4096];
    int length = snprintf(temporary, sizeof temporary, "%s/.%s-%05u.XXXXXX", directory, kind->prefix, rank);
    if ((size_t)length >= sizeof temporary) {
        log_line("HVPROF_DIRECTORY is too long: the job continues without a profile");
        return NULL;
    }
    int file = mkostemp(temporary, O_CLOEXEC);
    if (file < 0) {
        log_line("cannot write in %s (%s): the job continues without a profile", directory, strerror(errno));
        return NULL;
    }
    void *memory = map(file, size, parts, part_count);
    bool ready = memory != NULL;
    if (ready) {
        write_header(memory, identity);
        remember(file);
        fchmod(file, 0644);
        /* Held until this process ends, so that hvscale does not truncate the file before. */
        flock(file, LOCK_SH | LOCK_NB);
        ready = name_file(kind, temporary, directory, rank);
    }
    if (!ready) {
        uint64_t reserved = 0;
        for (size_t i = 0; i < part_count; i++)
            reserved += parts[i].bytes;
        log_line("cannot create a profile of %.1f MiB in %s (%s): the job continues without a profile",
                 (double)reserved / MIB, directory, strerror(errno));
        if (memory != NULL)
            munmap(memory, size);
        close(file);
    }
    unlink(temporary);
    return ready ? memory : NULL;
}
