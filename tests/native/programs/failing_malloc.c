/*
 * Preloaded before hvprof: makes hvprof's allocations fail, from number $FAIL_FROM on. Prints the
 * number of hvprof's allocations. All other allocations succeed.
 */
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static uintptr_t hvprof_begin, hvprof_end;
static long fail_from;
static atomic_long asked;

static int find_hvprof(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size, (void)data;
    if (strstr(info->dlpi_name, "libhvprof") == NULL)
        return 0;
    hvprof_begin = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD)
            hvprof_end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    return 1;
}

__attribute__((constructor)) static void begin(void)
{
    fail_from = atol(getenv("FAIL_FROM"));
    dl_iterate_phdr(find_hvprof, NULL);
}

__attribute__((destructor)) static void end(void)
{
    printf("%ld allocations\n", asked);
}

static int must_fail(const void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    return address >= hvprof_begin && address < hvprof_end && atomic_fetch_add(&asked, 1) >= fail_from;
}

void *malloc(size_t size)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
}
