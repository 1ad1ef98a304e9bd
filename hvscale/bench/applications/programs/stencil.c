/* A 3-D stencil: each new value comes from the cell and its six neighbours. The cells are cut into cuboids, whose walls are exchanged before every
 * step. stencil x=200 y=400 z=600 steps=300 work=1 */
#include "common.h"
#include "cuts.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { AXES = 3 };

/* A rank's cuboid: `size` cells that begin at `first` of the whole box, in memory within one layer of neighbours' cells on every side. */
struct cuboid {
    long long cells[AXES], first[AXES];
    size_t size[AXES], stride[AXES];
};

static size_t at(const struct cuboid *own, size_t x, size_t y, size_t z)
{
    return x * own->stride[0] + y * own->stride[1] + z;
}

static size_t allocated(const struct cuboid *own)
{
    return (own->size[0] + 2) * own->stride[0];
}

/* One type for each kind of wall, YZ, XZ and XY: a layer of cells across that axis, counted from the wall's first cell. */
static void make_walls(const struct cuboid *own, MPI_Datatype walls[AXES])
{
    int whole[AXES], layer[AXES], from[AXES] = {0, 0, 0};
    for (int axis = 0; axis < AXES; axis++)
        whole[axis] = (int)own->size[axis] + 2;
    for (int across = 0; across < AXES; across++) {
        for (int axis = 0; axis < AXES; axis++)
            layer[axis] = axis == across ? 1 : (int)own->size[axis];
        MPI_Type_create_subarray(AXES, whole, layer, from, MPI_ORDER_C, MPI_DOUBLE, &walls[across]);
        MPI_Type_commit(&walls[across]);
    }
}

/* The first cell of the layer `layer` across an axis; layer 0 and the last one hold the neighbours' cells. */
static size_t wall(const struct cuboid *own, int axis, size_t layer)
{
    size_t place[AXES] = {1, 1, 1};
    place[axis] = layer;
    return at(own, place[0], place[1], place[2]);
}

static void exchange(double *values, const struct cuboid *own, MPI_Datatype walls[AXES], MPI_Comm grid)
{
    MPI_Request requests[4 * AXES];
    int count = 0;
    for (int axis = 0; axis < AXES; axis++) {
        int below, above;
        size_t last = own->size[axis];
        MPI_Cart_shift(grid, axis, 1, &below, &above);
        MPI_Irecv(values + wall(own, axis, 0), 1, walls[axis], below, 2 * axis, grid, &requests[count++]);
        MPI_Irecv(values + wall(own, axis, last + 1), 1, walls[axis], above, 2 * axis + 1, grid, &requests[count++]);
        MPI_Isend(values + wall(own, axis, 1), 1, walls[axis], below, 2 * axis + 1, grid, &requests[count++]);
        MPI_Isend(values + wall(own, axis, last), 1, walls[axis], above, 2 * axis, grid, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
}

/* A cell becomes the mean of itself and its neighbours, `work` times over with the neighbours as they were. Parentheses fix the order of the sum,
 * so that a cell's bits do not depend on who computes it. */
static void step(const double *restrict old, double *restrict new, const struct cuboid *own, long long work)
{
    size_t over_x = own->stride[0], over_y = own->stride[1];
    for (size_t x = 1; x <= own->size[0]; x++) {
        for (size_t y = 1; y <= own->size[1]; y++) {
            size_t row = at(own, x, y, 0);
            for (size_t i = row + 1; i <= row + own->size[2]; i++) {
                double around = ((old[i - over_x] + old[i + over_x]) + (old[i - over_y] + old[i + over_y])) +
                                (old[i - 1] + old[i + 1]);
                double value = old[i];
                for (long long again = 0; again < work; again++)
                    value = (value + around) / 7;
                new[i] = value;
            }
        }
    }
}

/* The number of a cell in the whole box. */
static uint64_t number_of(const struct cuboid *own, size_t x, size_t y, size_t z)
{
    uint64_t place[AXES] = {x - 1, y - 1, z - 1};
    for (int axis = 0; axis < AXES; axis++)
        place[axis] += (uint64_t)own->first[axis];
    return (place[0] * (uint64_t)own->cells[1] + place[1]) * (uint64_t)own->cells[2] + place[2];
}

/* Around the box lie zeros; within it every cell has a number of its own. */
static void fill(double *values, const struct cuboid *own)
{
    for (size_t x = 1; x <= own->size[0]; x++)
        for (size_t y = 1; y <= own->size[1]; y++)
            for (size_t z = 1; z <= own->size[2]; z++)
                values[at(own, x, y, z)] = random_at(number_of(own, x, y, z));
}

/* A sum over hashes of each cell's number and bits: the same for every cut, and another one as soon as a bit of a cell differs. */
static uint64_t checksum(const double *values, const struct cuboid *own)
{
    uint64_t sum = 0;
    for (size_t x = 1; x <= own->size[0]; x++)
        for (size_t y = 1; y <= own->size[1]; y++)
            for (size_t z = 1; z <= own->size[2]; z++)
                sum += mixed(mixed(number_of(own, x, y, z)) ^ bits_of(values[at(own, x, y, z)]));
    return sum;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    const char *names[AXES] = {"x", "y", "z"};
    struct cuboid own;
    for (int axis = 0; axis < AXES; axis++)
        own.cells[axis] = parameter(argc, argv, names[axis], 1);
    long long steps = parameter(argc, argv, "steps", 1), work = parameter(argc, argv, "work", 1);
    int rank, np, blocks[AXES], endless[AXES] = {0, 0, 0}, place[AXES];
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    require(cut(own.cells, np, blocks), "stencil", "np is no product of three numbers, each at most the cells along its axis");
    MPI_Comm grid;
    MPI_Cart_create(MPI_COMM_WORLD, AXES, blocks, endless, 0, &grid);
    MPI_Comm_rank(grid, &rank);
    MPI_Cart_coords(grid, rank, AXES, place);
    for (int axis = 0; axis < AXES; axis++) {
        own.first[axis] = first_cell(own.cells[axis], blocks[axis], place[axis]);
        own.size[axis] = (size_t)(first_cell(own.cells[axis], blocks[axis], place[axis] + 1) - own.first[axis]);
    }
    own.stride[2] = 1;
    own.stride[1] = own.size[2] + 2;
    own.stride[0] = (own.size[1] + 2) * own.stride[1];

    double *old = memory(allocated(&own), sizeof *old), *new = memory(allocated(&own), sizeof *new);
    MPI_Datatype walls[AXES];
    make_walls(&own, walls);
    fill(old, &own);

    double start = start_together();
    for (long long done = 0; done < steps; done++) {
        exchange(old, &own, walls, grid);
        step(old, new, &own, work);
        double *other = old;
        old = new;
        new = other;
    }
    double seconds = slowest_since(start);

    uint64_t own_sum = checksum(old, &own), sum = 0;
    MPI_Reduce(&own_sum, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf(
            "{\"seconds\": %.9f, \"checksum\": \"%016" PRIx64 "\", \"blocks\": [%d, %d, %d]}\n",
            seconds, sum, blocks[0], blocks[1], blocks[2]
        );
    for (int axis = 0; axis < AXES; axis++)
        MPI_Type_free(&walls[axis]);
    MPI_Comm_free(&grid);
    free(old);
    free(new);
    MPI_Finalize();
    return 0;
}
