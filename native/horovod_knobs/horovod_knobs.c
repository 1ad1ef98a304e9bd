/*
 * Changes Horovod's fusion threshold and cycle time while it runs.
 *
 * Horovod reads both in each cycle, through two functions that only read its ParameterManager. This
 * library redirects them to its own values. It overwrites their first instructions, because Horovod
 * binds its calls when it is linked, so that no preloaded library can replace the functions. That
 * happens once, before hvd.init() starts the thread that calls them.
 */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static _Atomic int64_t threshold_bytes;
static _Atomic double cycle_milliseconds;
static _Atomic uint64_t reads;

static int64_t read_threshold(const void *manager)
{
    (void)manager;
    atomic_fetch_add_explicit(&reads, 1, memory_order_relaxed);
    return atomic_load(&threshold_bytes);
}

static double read_cycle(const void *manager)
{
    (void)manager;
    atomic_fetch_add_explicit(&reads, 1, memory_order_relaxed);
    return atomic_load(&cycle_milliseconds);
}

#if defined(__x86_64__)
/* movabs $target, %rax; jmp *%rax */
enum { JUMP_BYTES = 12 };
static void write_jump(unsigned char *code, uint64_t target)
{
    memcpy(code, "\x48\xb8", 2);
    memcpy(code + 2, &target, sizeof target);
    memcpy(code + 10, "\xff\xe0", 2);
}
#elif defined(__aarch64__)
/* ldr x16, .+8; br x16; the target */
enum { JUMP_BYTES = 16 };
static void write_jump(unsigned char *code, uint64_t target)
{
    static const uint32_t instructions[] = {0x58000050, 0xd61f0200};
    memcpy(code, instructions, sizeof instructions);
    memcpy(code + 8, &target, sizeof target);
}
#else
enum { JUMP_BYTES = 0 };
static void write_jump(unsigned char *code, uint64_t target)
{
    (void)code;
    (void)target;
}
#endif

/* Whether `code` is a function long enough for the jump. */
static bool has_room(void *code)
{
    Dl_info object;
    ElfW(Sym) *symbol = NULL;
    return JUMP_BYTES > 0 && dladdr1(code, &object, (void **)&symbol, RTLD_DL_SYMENT) != 0 && symbol != NULL &&
           object.dli_saddr == code && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_size >= JUMP_BYTES;
}

/* Returns 0 or an errno. */
static int redirect(void *code, uint64_t target)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)code & ~(page - 1);
    size_t length = (uintptr_t)code + JUMP_BYTES - first;
    if (mprotect((void *)first, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return errno;
    write_jump(code, target);
    if (mprotect((void *)first, length, PROT_READ | PROT_EXEC) != 0)
        return errno;
    __builtin___clear_cache((char *)code, (char *)code + JUMP_BYTES);
    return 0;
}

EXPORTED void hvknobs_set(int64_t threshold, double cycle)
{
    atomic_store(&threshold_bytes, threshold);
    atomic_store(&cycle_milliseconds, cycle);
}

/* How often Horovod has read a value: 0 if it does not call the redirected functions. */
EXPORTED uint64_t hvknobs_reads(void)
{
    return atomic_load(&reads);
}

/*
 * Redirects Horovod's functions ParameterManager::TensorFusionThresholdBytes() const and
 * CycleTimeMs() const. Call it after hvknobs_set, while no thread of Horovod runs. Returns 0 or an
 * errno: ENOTSUP if the functions are not as expected, EACCES if the system forbids the change.
 */
EXPORTED int hvknobs_redirect(void *threshold_function, void *cycle_function)
{
    if (!has_room(threshold_function) || !has_room(cycle_function))
        return ENOTSUP;
    int problem = redirect(threshold_function, (uint64_t)(uintptr_t)read_threshold);
    return problem != 0 ? problem : redirect(cycle_function, (uint64_t)(uintptr_t)read_cycle);
}
