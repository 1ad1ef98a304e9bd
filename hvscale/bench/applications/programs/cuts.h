/* How a box of cells is cut among ranks. */
#ifndef HVSCALE_CUTS_H
#define HVSCALE_CUTS_H

/* The number of blocks along each axis whose product is `np`, with the least area between cuboids; of equal ones that whose largest cuboid is
 * smaller, then the one with fewer blocks along the last axis, in which neighbours lie together in memory. 0 when no axis has cells for it. */
int cut(const long long cells[3], int np, int blocks[3]);

/* The first cell of block `block` of `blocks` along an axis of `cells`: blocks differ by one layer at most. */
long long first_cell(long long cells, int blocks, int block);

#endif
