/*
 * Reads the compact decision table (docs/explanation/broadcast.md) and chooses the algorithm of a
 * broadcast. Knows nothing of MPI.
 */
#ifndef HVBCAST_TABLE_H
#define HVBCAST_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum algorithm { LIBRARY, FLAT, CHAIN, K_NOMIAL, TWO_LEVEL, ALGORITHMS };

struct choice {
    enum algorithm algorithm;
    uint64_t chunk; /* bytes of one message */
    int depth; /* chunks in flight */
    int radix; /* of a k-nomial tree */
};

const char *algorithm_name(enum algorithm algorithm);

/* ALGORITHMS for an unknown name. */
enum algorithm algorithm_named(const char *name);

/* Whether the choice's numbers are within their limits. */
bool choice_valid(const struct choice *choice);

/*
 * Reads the file, in one thread. Returns NULL, or what is wrong with it: then there are no rules.
 */
const char *table_read(const char *path);

/* The flavour of MPI, as hvscale names it; empty without a table. */
const char *table_made_with(void);

/* Equal on ranks with the same rules; 0 without a table. */
uint64_t table_checksum(void);

/* The rules for one number of ranks. */
struct rules {
    const struct rule *first;
    size_t count;
    int ranks;
    bool any_ours; /* one of them chooses an algorithm other than LIBRARY */
};

/* For the nearest number of ranks; none without a table. */
struct rules table_rules(int ranks);

/*
 * Whether one of them, for any number of ranks per node, chooses an algorithm of ours for this
 * size.
 */
bool table_may_choose(const struct rules *rules, uint64_t bytes);

/*
 * The choice for this size by the rules for the nearest number of ranks per node; LIBRARY if none
 * holds it.
 */
struct choice table_choose(const struct rules *rules, int ranks_per_node, uint64_t bytes);

#endif
