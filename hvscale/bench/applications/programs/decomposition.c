#include "decomposition.h"

long long first_cell(long long cells, int blocks, int block)
{
    long long each = cells / blocks, longer = cells % blocks;
    return block * each + (block < longer ? block : longer);
}

/* The area between cuboids, in faces of cells. */
static long long area(const long long cells[3], const int blocks[3])
{
    return (blocks[0] - 1) * cells[1] * cells[2] + (blocks[1] - 1) * cells[0] * cells[2] +
           (blocks[2] - 1) * cells[0] * cells[1];
}

static long long largest(const long long cells[3], const int blocks[3])
{
    long long product = 1;
    for (int axis = 0; axis < 3; axis++)
        product *= (cells[axis] + blocks[axis] - 1) / blocks[axis];
    return product;
}

static int is_better(const long long cells[3], const int blocks[3], const int than[3])
{
    long long difference = area(cells, blocks) - area(cells, than);
    if (difference == 0)
        difference = largest(cells, blocks) - largest(cells, than);
    if (difference == 0)
        difference = blocks[2] - than[2];
    return difference < 0;
}

int decompose(const long long cells[3], int np, int blocks[3])
{
    int found = 0;
    for (int x = 1; x <= np; x++) {
        for (int y = 1; np % x == 0 && y <= np / x; y++) {
            int tried[3] = {x, y, np / x / y};
            if (np / x % y != 0 || tried[0] > cells[0] || tried[1] > cells[1] || tried[2] > cells[2])
                continue;
            if (!found || is_better(cells, tried, blocks))
                for (int axis = 0; axis < 3; axis++)
                    blocks[axis] = tried[axis];
            found = 1;
        }
    }
    return found;
}
