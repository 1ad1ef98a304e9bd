/*
 * A profile file: mapped by its process, so that it survives a kill of the process, and protected
 * by checksums.
 */
#ifndef HVSCALE_MAPPED_FILE_H
#define HVSCALE_MAPPED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define CHECK_FACTOR 0x9E3779B97F4A7C15u

struct mapped_file_kind {
    const char *prefix; /* of the file name: "rank" in rank-00003.hvp */
    const char *extension;
};

/* Bytes of a file for which disk space is reserved. */
struct file_part {
    uint64_t offset;
    uint64_t bytes;
};

/*
 * Creates and maps this process's file of `size` bytes in $HVPROF_DIRECTORY. Disk space is reserved
 * for `parts`, of which the first ends with the file; the process may write nowhere else before
 * mapped_file_reserve. `write_header` is called before the file gets its name. Files of earlier processes are neither shared nor replaced.
 * A forked child does not inherit the mapping. Returns NULL after one line on stderr if that fails.
 */
void *mapped_file_create(const struct mapped_file_kind *kind, uint32_t rank, uint64_t size,
                         const struct file_part *parts, size_t part_count,
                         void (*write_header)(void *file, const void *identity), const void *identity);

/*
 * Reserves disk space for further bytes of the file that mapped_file_create has opened. False if the
 * disk is full, or if the program has closed the file.
 */
bool mapped_file_reserve(struct file_part part);

/* The bytes of the ring of records, from $HVPROF_MIB. */
uint64_t mapped_file_ring_bytes(void);

/* The contribution of word number `index` to a checksum. Any single flipped bit changes the sum. */
static inline uint64_t check_word(uint64_t word, size_t index)
{
    return word * (CHECK_FACTOR * (2 * index + 1));
}

/* The checksum of consecutive words. The products are independent, so they run in parallel. */
static inline uint64_t check_words(const uint64_t *words, size_t count)
{
    uint64_t sum = CHECK_FACTOR;
#pragma GCC unroll 8
    for (size_t i = 0; i < count; i++)
        sum += check_word(words[i], i);
    return sum;
}

static inline uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

#endif
