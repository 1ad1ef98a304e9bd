/* Flat, chain and k-nomial trees. */
#include "trees.h"

/*
 * The digits of a rank's number in base `radix` are its path from the root: the parent's number
 * lacks the last non-zero digit.
 */
static void k_nomial(int radix, int number, int size, struct tree_place *place)
{
    long long unit = 1; /* value of the lowest non-zero digit; for the root, above all digits */
    while (unit < size && number / unit % radix == 0)
        unit *= radix;
    if (number > 0)
        place->parent = (int)(number - number / unit % radix * unit);
    /* Send to the largest subtrees first, because they take longest. */
    for (unit /= radix; unit > 0; unit /= radix)
        for (int digit = 1; digit < radix && number + digit * unit < size; digit++)
            place->children[place->count++] = (int)(number + digit * unit);
}

void tree_place(enum algorithm algorithm, int radix, int number, int size, struct tree_place *place)
{
    place->parent = -1;
    place->count = 0;
    switch (algorithm) {
    case FLAT:
        if (number > 0)
            place->parent = 0;
        for (int child = 1; number == 0 && child < size; child++)
            place->children[place->count++] = child;
        break;
    case K_NOMIAL:
        k_nomial(radix, number, size, place);
        break;
    default:
        place->parent = number - 1;
        if (number + 1 < size)
            place->children[place->count++] = number + 1;
    }
}
