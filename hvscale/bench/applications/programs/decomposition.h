/* Decomposition of a box of cells into one cuboid per rank. */
#ifndef HVSCALE_DECOMPOSITION_H
#define HVSCALE_DECOMPOSITION_H

/* Finds the number of blocks along each axis, whose product is `np`, with the least area between cuboids. Ties: the
 * smaller largest cuboid, then fewer blocks along the last axis, in which neighbours are adjacent in memory.
 * Returns 0 if there is no such decomposition. */
int decompose(const long long cells[3], int np, int blocks[3]);

/* The first cell of a block along an axis of `cells` cells. Block sizes differ by at most one layer. */
long long first_cell(long long cells, int blocks, int block);

#endif
