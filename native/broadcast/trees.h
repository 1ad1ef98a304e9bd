/* Who hands a broadcast's data on to whom. */
#ifndef HVBCAST_TREES_H
#define HVBCAST_TREES_H

#include "table.h"

/* Of `size` members numbered from the root, member `number`'s parent (-1: none) and, in order of their start, its children.
 * `children` has room for all members. */
struct place {
    int parent;
    int count;
    int *children;
};

void tree_place(enum algorithm algorithm, int radix, int number, int size, struct place *place);

#endif
