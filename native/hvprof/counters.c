/* Counts calls in the mapped file. */
#include "counters.h"

#include <pthread.h>
#include <stdbool.h>

#include "common/log.h"
#include "common/mapped_file.h"
#include "operations.h"
#include "recorder.h"

enum {
    /* From here on, one counter per operation, shared by all threads, sizes and communicators. */
    SHARED = HVPROF_COUNTERS - HVPROF_OPERATIONS,
    MAX_KNOWN = COUNTERS_KNOWN * 3 / 4,
    RESERVED_AT_ONCE = 54, /* counters: 64 KiB */
};
/* A thread that cannot remember a key has found the table full, so the key never claims again. */
_Static_assert(MAX_KNOWN > SHARED, "a thread remembers every counter that it has claimed");
enum { SHORTEST = 6, STEPS_LOG2 = 2 }; /* latency classes: one below 2^6 ns, then four per doubling */
enum { KEY, CALLS, BYTES, DURATION, LATENCIES }; /* words of a counter */

static struct hvprof_counter *table;
static uint32_t used, reserved, limit = SHARED;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Sums over collectives; the bytes exclude bitwise reductions. */
struct collectives {
    uint64_t blocking_ns, all_ns, bytes;
};

static struct {
    struct hvprof_step_sums *sums;
    bool begun;
    uint64_t start_ns; /* time of the last mark */
    struct collectives before; /* up to it */
    uint16_t thread; /* that made it */
    pthread_mutex_t lock;
} step = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Atomic uint64_t in_steps; /* a bit of the key, once there is a step mark */

void counters_open(struct hvprof_file *file, uint32_t available)
{
    table = file->counters;
    reserved = available;
    step.sums = &file->header.step_sums;
}

/* With `lock` held. Whether disk space is reserved for the next counter. */
static bool has_space(void)
{
    if (used < reserved)
        return true;
    uint32_t more = limit - used < RESERVED_AT_ONCE ? limit - used : RESERVED_AT_ONCE;
    struct file_part part = {offsetof(struct hvprof_file, counters) + used * sizeof *table, more * sizeof *table};
    if (!mapped_file_reserve(part))
        return false;
    reserved += more;
    return true;
}

/* Class c has sizes above 2^(c-2) and up to 2^(c-1); class 0 has size 0. */
static inline uint64_t size_class(uint64_t bytes)
{
    return bytes > 1 ? 65 - (uint64_t)__builtin_clzll(bytes - 1) : bytes;
}

static inline size_t latency_class(uint64_t duration_ns)
{
    if (duration_ns >> SHORTEST == 0)
        return 0;
    unsigned power = 63 - (unsigned)__builtin_clzll(duration_ns);
    size_t found = 1 + ((size_t)(power - SHORTEST) << STEPS_LOG2) + (duration_ns >> (power - STEPS_LOG2) & 3);
    return found < HVPROF_LATENCIES ? found : HVPROF_LATENCIES - 1;
}

static inline uint64_t key_of(uint16_t operation, uint64_t class, uint16_t flags, uint16_t thread, uint32_t ranks)
{
    return (uint64_t)ranks << 32 | (uint64_t)thread << 16 | 1u << 15 |
        atomic_load_explicit(&in_steps, memory_order_relaxed) | (flags & HVPROF_BITWISE) << 13 | class << 6 | operation;
}

/* The factors are unrelated, so damage to a single word never looks like a partly counted call. */
static inline uint64_t check_part(uint64_t value, size_t word)
{
    uint64_t factor = CHECK_FACTOR * (word + 1);
    factor = (factor ^ factor >> 32) * 0xBF58476D1CE4E5B9u | 1;
    return value * factor;
}

/* With `lock` held. The key is stored last: a counter with a key has a check. */
static void begin(struct hvprof_counter *counter, uint64_t key)
{
    if (atomic_load_explicit(&counter->key, memory_order_relaxed) != 0)
        return;
    atomic_store_explicit(&counter->check, CHECK_FACTOR + check_part(key, KEY), memory_order_relaxed);
    atomic_store_explicit(&counter->key, key, memory_order_release);
}

static struct hvprof_counter *claim(uint64_t key)
{
    static bool warned;
    pthread_mutex_lock(&lock);
    struct hvprof_counter *counter;
    if (used < limit && !has_space()) {
        log_line("no space for more than %u kinds of calls: later ones are counted without their sizes", used);
        warned = true;
        limit = used;
    }
    if (used < limit) {
        counter = &table[used++];
        begin(counter, key);
    } else {
        uint16_t operation = key % HVPROF_OPERATIONS;
        counter = &table[SHARED + operation];
        begin(counter, key_of(operation, HVPROF_ALL_SIZES, 0, 0, 0));
        if (!warned)
            log_line("more than %d kinds of calls: later ones are counted without their sizes", SHARED);
        warned = true;
    }
    pthread_mutex_unlock(&lock);
    return counter;
}

static inline struct hvprof_counter *find(struct counters *own, uint64_t key)
{
    size_t i = key * CHECK_FACTOR >> (64 - COUNTERS_KNOWN_LOG2);
    for (; own->known[i].key != key; i = (i + 1) % COUNTERS_KNOWN) {
        if (own->known[i].key == 0) {
            struct hvprof_counter *found = claim(key);
            /* Some places stay empty, so that every search terminates. */
            if (own->count < MAX_KNOWN) {
                own->known[i].key = key;
                own->known[i].counter = found;
                own->count++;
            }
            return found;
        }
    }
    return own->known[i].counter;
}

static inline void add(_Atomic uint64_t *word, uint64_t value, bool shared)
{
    if (shared)
        atomic_fetch_add_explicit(word, value, memory_order_release);
    else
        atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + value, memory_order_release);
}

void counters_add(struct counters *own, uint16_t operation, uint16_t flags, uint32_t ranks, uint64_t bytes,
                  uint64_t duration_ns)
{
    struct hvprof_counter *counter = find(own, key_of(operation, size_class(bytes), flags, own->thread, ranks));
    bool shared = counter >= &table[SHARED];
    size_t latency = latency_class(duration_ns);
    uint64_t change = check_part(1, LATENCIES + latency) + check_part(1, CALLS) + check_part(bytes, BYTES) +
                      check_part(duration_ns, DURATION);
    /*
     * In this order, so that a reader can find out how much of a killed process's call was counted.
     */
    add(&counter->latencies[latency], 1, shared);
    add(&counter->calls, 1, shared);
    add(&counter->bytes, bytes, shared);
    add(&counter->check, change, shared);
    add(&counter->duration_ns, duration_ns, shared);
}

static inline uint64_t add_relaxed(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t sum = atomic_load_explicit(word, memory_order_relaxed) + value;
    atomic_store_explicit(word, sum, memory_order_relaxed);
    return sum;
}

static inline bool is_point_to_point(uint64_t operation)
{
    uint64_t blocking = operation % NON_BLOCKING;
    return blocking == HVPROF_SEND || blocking == HVPROF_RECEIVE || blocking == HVPROF_SEND_RECEIVE;
}

/* The sums so far; of blocking ones, only those by `thread`. */
static struct collectives sum_collectives(uint16_t thread)
{
    pthread_mutex_lock(&lock);
    uint32_t count = used;
    pthread_mutex_unlock(&lock);
    struct collectives sums = {0};
    for (uint32_t i = 0; i < HVPROF_COUNTERS; i++) {
        if (i == count)
            i = SHARED;
        uint64_t key = atomic_load_explicit(&table[i].key, memory_order_acquire);
        uint64_t operation = key % HVPROF_OPERATIONS;
        if (key == 0 || operation == HVPROF_STEP || is_point_to_point(operation))
            continue;
        uint64_t duration_ns = atomic_load_explicit(&table[i].duration_ns, memory_order_relaxed);
        sums.all_ns += duration_ns;
        if ((key >> 13 & HVPROF_BITWISE) == 0)
            sums.bytes += atomic_load_explicit(&table[i].bytes, memory_order_relaxed);
        if (i < SHARED && operation < NON_BLOCKING && (uint16_t)(key >> 16) == thread)
            sums.blocking_ns += duration_ns;
    }
    return sums;
}

/* Returns the time since the last mark. With `step.lock` held. */
static uint64_t end_step(uint64_t now_ns)
{
    uint64_t duration_ns = now_ns > step.start_ns ? now_ns - step.start_ns : 0;
    struct collectives now = sum_collectives(step.thread);
    struct hvprof_step_sums *sums = step.sums;
    uint64_t words[] = {
        add_relaxed(&sums->steps, 1),
        add_relaxed(&sums->duration_ns, duration_ns),
        add_relaxed(&sums->blocking_ns, now.blocking_ns - step.before.blocking_ns),
        add_relaxed(&sums->collectives_ns, now.all_ns - step.before.all_ns),
        add_relaxed(&sums->collectives_bytes, now.bytes - step.before.bytes),
    };
    atomic_store_explicit(&sums->check, check_words(words, sizeof words / sizeof *words), memory_order_relaxed);
    return duration_ns;
}

void counters_add_step(struct counters *own, uint64_t now_ns)
{
    pthread_mutex_lock(&step.lock);
    uint64_t duration_ns = step.begun ? end_step(now_ns) : 0;
    step.begun = true;
    step.start_ns = now_ns;
    step.thread = own->thread;
    step.before = sum_collectives(step.thread);
    atomic_store_explicit(&in_steps, 1u << 14, memory_order_relaxed);
    pthread_mutex_unlock(&step.lock);
    counters_add(own, HVPROF_STEP, 0, 0, 0, duration_ns);
}
