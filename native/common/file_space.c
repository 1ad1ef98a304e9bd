/* Reserves file space without the signal that a limit on file sizes raises. */
#include "file_space.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>

/*
 * Beyond the limit the kernel sends SIGXFSZ to this thread, which by default ends the process. This
 * function blocks the signal during the call and then discards it, so the program never sees it.
 */
int file_space_reserve(int file, uint64_t offset, uint64_t size)
{
    static const struct timespec no_wait;
    sigset_t too_large, before, pending;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &too_large, &before);
    sigpending(&pending);
    int error = posix_fallocate(file, (off_t)offset, (off_t)size);
    if (error == EFBIG && !sigismember(&pending, SIGXFSZ))
        while (sigtimedwait(&too_large, NULL, &no_wait) < 0 && errno == EINTR)
            continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
