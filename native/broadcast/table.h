/* The decision table in its compact form (docs/explanation/broadcast.md): which algorithm a broadcast takes. Knows nothing of MPI. */
#ifndef HVBCAST_TABLE_H
#define HVBCAST_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum algorithm { LIBRARY, FLAT, CHAIN, K_NOMIAL, TWO_LEVEL, ALGORITHMS };

struct choice {
    enum algorithm algorithm;
    uint64_t chunk; /* bytes that are sent at once */
    int depth; /* chunks in flight */
    int radix; /* of a k-nomial tree */
};

const char *algorithm_name(enum algorithm algorithm);

/* ALGORITHMS for a word that names none. */
enum algorithm algorithm_named(const char *name);

/* Whether a choice can be carried out: its numbers lie within their limits. */
bool choice_valid(const struct choice *choice);

/* Reads the file, in one thread. NULL, or what is wrong with it: then there are no rules. */
const char *table_read(const char *path);

/* The flavour of MPI, in hvscale's words; empty without a table. */
const char *table_made_with(void);

/* Its checksum: the same in all ranks that have the same rules; 0 without a table. */
uint64_t table_checksum(void);

/* Those for one number of ranks, which one communicator takes; `ours`: whether any is not the library. */
struct rules {
    const struct rule *first;
    size_t count;
    int ranks;
    bool ours;
};

/* For the nearest number of ranks; none without a table. */
struct rules table_rules(int ranks);

/* Whether one of them holds this size and is ours, for any number of ranks on a node. */
bool table_may_choose(const struct rules *rules, uint64_t bytes);

/* The one for the nearest number of ranks on a node whose range holds the size; else the library. */
struct choice table_choose(const struct rules *rules, int ranks_per_node, uint64_t bytes);

#endif
