/* Writes the rank's log file. */
#include "rank_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"

static struct {
    char path[PATH_MAX];
    int file;
} rank_log = {.file = STDERR_FILENO};

static void give_up(void)
{
    rank_log.file = STDERR_FILENO;
    log_line("%s: %s; this rank's output goes to the terminal only", rank_log.path, strerror(errno));
}

void rank_log_open(const char *run, int rank)
{
    snprintf(rank_log.path, sizeof rank_log.path, "%s/logs/rank-%05d.log", run, rank);
    rank_log.file = open(rank_log.path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (rank_log.file < 0)
        give_up();
}

void rank_log_write(const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(rank_log.file, data, bytes);
        if (written >= 0) {
            data += written;
            bytes -= (size_t)written;
        } else if (errno != EINTR) {
            if (rank_log.file == STDERR_FILENO)
                return;
            give_up();
        }
    }
}
