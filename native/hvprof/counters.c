/* Counts calls in the mapped file. */
#include "counters.h"

#include <pthread.h>
#include <stdbool.h>

#include "common/log.h"
#include "common/mapped_file.h"
#include "recorder.h"

enum {
    /* From here on, one counter per operation, shared by all threads, sizes and communicators. */
    SHARED = HVPROF_COUNTERS - HVPROF_OPERATIONS,
    MAX_KNOWN = COUNTERS_KNOWN * 3 / 4,
};
enum { SHORTEST = 6, STEPS_LOG2 = 2 }; /* latency classes: one below 2^6 ns, then four per doubling */
enum { KEY, CALLS, BYTES, DURATION, LATENCIES }; /* words of a counter */

static struct hvprof_counter *table;
static uint32_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void counters_open(struct hvprof_counter opened[HVPROF_COUNTERS])
{
    table = opened;
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
    return (uint64_t)ranks << 32 | (uint64_t)thread << 16 | 1u << 15 | (flags & HVPROF_BITWISE) << 13 | class << 6 |
        operation;
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
    if (used < SHARED) {
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
    size_t i = key * CHECK_FACTOR >> 56;
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
