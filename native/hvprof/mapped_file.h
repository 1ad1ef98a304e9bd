/* What every profile file is made of: one mapped file for each process, which survives the process, and its checks. */
#ifndef HVPROF_MAPPED_FILE_H
#define HVPROF_MAPPED_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define CHECK_FACTOR 0x9E3779B97F4A7C15u

struct mapped_file_kind {
    const char *prefix; /* of the file's name: rank in rank-00003.hvp */
    const char *extension;
    const char *speaker; /* begins every line on stderr */
};

/* Makes this process's file of `size` bytes in $HVPROF_DIRECTORY. It gets its name when `describe` has written its header, and never
 * shares or replaces the file of an earlier process. Gives NULL, after one line on stderr, when that cannot be done; a forked child has
 * no mapping. */
void *mapped_file_make(const struct mapped_file_kind *kind, uint32_t rank, uint64_t size,
                       void (*describe)(void *file, const void *identity), const void *identity);

/* The bytes of a ring as $HVPROF_MIB asks for it. */
uint64_t mapped_file_ring_bytes(const struct mapped_file_kind *kind);

/* One line on stderr. */
__attribute__((format(printf, 2, 3))) void mapped_file_say(const struct mapped_file_kind *kind, const char *format, ...);

/* What word number `index` adds to a check: any single flipped bit changes the sum. */
static inline uint64_t check_word(uint64_t word, size_t index)
{
    return word * (CHECK_FACTOR * (2 * index + 1));
}

/* The products do not wait for each other. */
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
