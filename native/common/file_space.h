/* Reserves disk or memory space for a file before it is mapped. */
#ifndef HVSCALE_FILE_SPACE_H
#define HVSCALE_FILE_SPACE_H

#include <stdint.h>

/*
 * Reserves `size` bytes of `file` from `offset` on. Returns 0 or an errno value: EFBIG, without a
 * signal, beyond a limit on file sizes (ulimit -f).
 */
int file_space_reserve(int file, uint64_t offset, uint64_t size);

#endif
