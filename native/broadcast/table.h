/*
 * Reads the compact decision table (docs/explanation/broadcast.md) and chooses the algorithm of a
 * broadcast. Independent of MPI.
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

/* The algorithm with this name; ALGORITHMS for an unknown name. */
enum algorithm algorithm_named(const char *name);

/* Whether all numbers of the choice are within their limits. */
bool choice_valid(const struct choice *choice);

/* Reads the file. Returns NULL, or the problem; then there are no rules. Not thread-safe. */
const char *table_read(const char *path);

/*
 * Replaces the file's rules: by one for large messages on any number of ranks, which chooses this
 * algorithm, by none for "off", and by the file's own for "". False for an unknown name, which
 * changes nothing. Not thread-safe; rules that were looked up before are invalid afterwards.
 */
bool table_replace(const char *algorithm);

/* The MPI flavour that the file was made with, by hvscale's name; empty if its rules are not used. */
const char *table_made_with(void);

/* Equal on ranks with the same rules; 0 without a table. */
uint64_t table_checksum(void);

/* The rules for one number of ranks. */
struct rules {
    const struct rule *first;
    size_t count;
    int ranks;
    bool any_own_algorithm; /* at least one rule chooses an algorithm other than LIBRARY */
};

/* The rules for this number of ranks, or for the nearest one; none without a table. */
struct rules table_rules(int ranks);

/*
 * Whether a rule, for any number of ranks per node, chooses an algorithm other than LIBRARY for
 * this size.
 */
bool table_may_choose(const struct rules *rules, uint64_t bytes);

/*
 * The choice for this size, from the rules for the nearest number of ranks per node; LIBRARY if no
 * rule covers the size.
 */
struct choice table_choose(const struct rules *rules, int ranks_per_node, uint64_t bytes);

#endif
