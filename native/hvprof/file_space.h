/* Space for a file that is going to be mapped. */
#ifndef HVPROF_FILE_SPACE_H
#define HVPROF_FILE_SPACE_H

#include <stdint.h>

/* Reserves the first `size` bytes of `file`; gives 0 or the error's number. A limit on file sizes (ulimit -f) gives EFBIG and no signal. */
int file_space_reserve(int file, uint64_t size);

#endif
