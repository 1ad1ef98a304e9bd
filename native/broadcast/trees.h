/* Which rank sends to which in a broadcast. */
#ifndef HVBCAST_TREES_H
#define HVBCAST_TREES_H

#include "table.h"

/* The place of one rank in the tree. Ranks are numbered from the root. */
struct tree_place {
    int parent; /* -1: this is the root */
    int count;
    int *children; /* in the order of sending; the caller provides space for all ranks */
};

void tree_place(enum algorithm algorithm, int radix, int number, int size, struct tree_place *place);

#endif
